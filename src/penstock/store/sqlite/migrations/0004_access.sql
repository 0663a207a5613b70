-- Principals: grants are texts with spaces between them, limits is a JSON object. 'access' in meta is the time (ticks)
-- of the last change; 0: there never was a principal, so every client may do everything.
CREATE TABLE principals (
    name TEXT PRIMARY KEY,
    grants TEXT NOT NULL,
    limits TEXT NOT NULL,
    created INTEGER NOT NULL,
    changed INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO meta (key, value) VALUES ('access', '0');

-- How clients show that they are a principal. proof is the SHA-256 of a token's secret in hex, or empty.
CREATE TABLE credentials (
    id TEXT PRIMARY KEY,
    principal TEXT NOT NULL,
    kind TEXT NOT NULL,
    proof TEXT NOT NULL,
    label TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER
) WITHOUT ROWID;
CREATE INDEX credentials_of_principals ON credentials (principal);

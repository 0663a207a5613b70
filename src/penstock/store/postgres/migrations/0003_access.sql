-- Principals: grants are texts with spaces between them, limits is a JSON object. 'access' in meta is the time (ticks)
-- of the last change; 0: there never was a principal, so every client may do everything.
CREATE TABLE principals (
    name text COLLATE "C" PRIMARY KEY,
    grants text COLLATE "C" NOT NULL,
    limits text COLLATE "C" NOT NULL,
    created bigint NOT NULL,
    changed bigint NOT NULL
);
INSERT INTO meta (key, value) VALUES ('access', '0');

-- How clients show that they are a principal. proof is the SHA-256 of a token's secret in hex, or empty.
CREATE TABLE credentials (
    id text COLLATE "C" PRIMARY KEY,
    principal text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    proof text COLLATE "C" NOT NULL,
    label text COLLATE "C" NOT NULL,
    created bigint NOT NULL,
    expires bigint
);
CREATE INDEX credentials_of_principals ON credentials (principal);

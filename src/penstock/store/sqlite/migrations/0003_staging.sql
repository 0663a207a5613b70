-- What jobs have staged: an attempt of a part of a job, when something was last added to it (ticks), its units and bytes.
CREATE TABLE stages (
    id INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    part INTEGER NOT NULL,
    attempt TEXT NOT NULL,
    used INTEGER NOT NULL,
    units INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    UNIQUE (job, part, attempt)
);
CREATE INDEX stages_used ON stages (used);

-- Units: events of one stream as a record without a place. expected is the sequence that the job's first event in the
-- stream must get, or -1; low is the lowest of the keys, or empty.
CREATE TABLE staged (
    id INTEGER PRIMARY KEY,
    stage_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    context TEXT NOT NULL,
    stream TEXT NOT NULL,
    expected INTEGER NOT NULL,
    low BLOB NOT NULL,
    keys BLOB NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX staged_of_stages ON staged (stage_id);

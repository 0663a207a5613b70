-- Positions, sequences and ordinals are dense; see docs/decisions for why the tables are as they are.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- A restore starts a new timeline after the last position it brought back.
CREATE TABLE timelines (
    timeline INTEGER PRIMARY KEY,
    after_position INTEGER NOT NULL,
    started INTEGER NOT NULL
);

-- The counters are kept by every append, so that nobody has to count. top is the highest event time so far,
-- block the last block entered below; both -1 at first.
CREATE TABLE contexts (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    events INTEGER NOT NULL,
    commits INTEGER NOT NULL,
    streams INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    top INTEGER NOT NULL,
    block INTEGER NOT NULL
);

CREATE TABLE streams (
    id INTEGER PRIMARY KEY,
    context_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (context_id, name)
);

-- One row per commit until it is sealed. context_id and stream_id are null in a record that holds several.
CREATE TABLE records (
    position INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    context_id INTEGER,
    stream_id INTEGER,
    data BLOB NOT NULL
);

-- The index of each stream, one row per commit for ever: the last sequence of the commit and its first position.
CREATE TABLE commits (
    stream_id INTEGER NOT NULL,
    last INTEGER NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (stream_id, last)
) WITHOUT ROWID;

-- The blocks of 4,096 positions in which a context has a record that begins there, and the highest event time it
-- had before: a sparse context is found without reading the others, and a time without reading at all.
CREATE TABLE blocks (
    context_id INTEGER NOT NULL,
    block INTEGER NOT NULL,
    top_before INTEGER NOT NULL,
    PRIMARY KEY (context_id, block)
) WITHOUT ROWID;
CREATE INDEX blocks_by_top ON blocks (context_id, top_before, block);

CREATE TABLE subscriptions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    subscriber TEXT NOT NULL,
    context TEXT NOT NULL,
    filter TEXT NOT NULL,
    position INTEGER NOT NULL,
    last_ticks INTEGER,
    UNIQUE (subscriber, context, filter)
);

-- An allocation that has expired and had dead_after holders is a dead letter: nobody gets it until it is put back.
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    context TEXT NOT NULL,
    filter TEXT NOT NULL,
    position INTEGER NOT NULL,
    dead_after INTEGER,
    UNIQUE (name, context)
);

CREATE TABLE allocations (
    queue_id INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    count INTEGER NOT NULL,
    subscriber TEXT NOT NULL,
    expires INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    PRIMARY KEY (queue_id, first)
) WITHOUT ROWID;
CREATE INDEX allocations_by_expiry ON allocations (queue_id, expires);

CREATE TABLE producers (
    name TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    result BLOB NOT NULL,
    used INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX producers_by_use ON producers (used);

-- Ordinal i of a log is sequence base + i + 1 of its stream. bytes is the sum of its messages.
CREATE TABLE logs (
    name TEXT PRIMARY KEY,
    created INTEGER NOT NULL,
    base INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;

-- over says what log names: a log, an iterator or a stream (context/stream). Message i of it has sequence
-- base + i + 1; source is the last sequence that was read.
CREATE TABLE iterators (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    log TEXT NOT NULL,
    over TEXT NOT NULL,
    kind TEXT NOT NULL,
    function TEXT NOT NULL,
    indexed INTEGER NOT NULL,
    created INTEGER NOT NULL,
    base INTEGER NOT NULL,
    source INTEGER NOT NULL,
    outputs INTEGER NOT NULL
);
CREATE INDEX iterators_by_log ON iterators (log, name);

-- Items of an iterator's output, many to a row: lengths (u32, little-endian), then the items. The last row has the
-- iterator's accumulator. Rows are added and emptied but neither grow nor go: SQLite moves the neighbours of rows that
-- do, and what it leaves behind in a page it never clears.
CREATE TABLE outputs (
    iterator_id INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    count INTEGER NOT NULL,
    data BLOB NOT NULL,
    state BLOB,
    PRIMARY KEY (iterator_id, ordinal)
);

-- What was erased, or is still being erased: a stream's events up to a sequence, or the output of an iterator up to a
-- number of items. done is how far it has come, last when all is rewritten. finished is set when no file holds any of it.
CREATE TABLE erasures (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    context TEXT,
    stream TEXT,
    iterator_id INTEGER,
    last INTEGER NOT NULL,
    done INTEGER NOT NULL,
    requested INTEGER NOT NULL,
    finished INTEGER
);
CREATE INDEX erasures_open ON erasures (context, stream) WHERE finished IS NULL;

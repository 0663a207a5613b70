-- Seals: all records that begin before this position are sealed.
INSERT INTO meta (key, value) VALUES ('sealed', 1);

-- Erasures of events by position: ranges of (first, last), u64 each, little-endian, of the timeline. events says how many
-- there were, damaged how many records could not be rewritten. done and last count ranges then.
ALTER TABLE erasures ADD COLUMN ranges BLOB;
ALTER TABLE erasures ADD COLUMN timeline INTEGER NOT NULL DEFAULT 1;
ALTER TABLE erasures ADD COLUMN events INTEGER NOT NULL DEFAULT 0;
ALTER TABLE erasures ADD COLUMN damaged INTEGER NOT NULL DEFAULT 0;

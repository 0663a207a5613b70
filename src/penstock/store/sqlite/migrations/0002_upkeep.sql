-- Seals: all records that begin before the position 'sealed' are sealed. 'rewrites' counts the steps of erasures that
-- have put tombstones into records: a seal that was prepared before such a step must not bring the contents back.
INSERT INTO meta (key, value) VALUES ('sealed', 1), ('rewrites', 0);

-- Erasures of events by position: ranges of (first, last), u64 each, little-endian, of the timeline. Then last is the
-- last position of the last range, and done the position up to which all is rewritten. events says how many there
-- were, damaged how many records could not be rewritten.
ALTER TABLE erasures ADD COLUMN ranges BLOB;
ALTER TABLE erasures ADD COLUMN timeline INTEGER NOT NULL DEFAULT 1;
ALTER TABLE erasures ADD COLUMN events INTEGER NOT NULL DEFAULT 0;
ALTER TABLE erasures ADD COLUMN damaged INTEGER NOT NULL DEFAULT 0;
CREATE INDEX erasures_of_streams ON erasures (context, stream, last) WHERE context IS NOT NULL;
CREATE INDEX erasures_open_of_ranges ON erasures (id) WHERE finished IS NULL AND ranges IS NOT NULL;

-- Rows of output that is erased go now. What was being erased is gone through once more, because it was only emptied.
UPDATE erasures SET done = 0 WHERE iterator_id IS NOT NULL AND finished IS NULL;

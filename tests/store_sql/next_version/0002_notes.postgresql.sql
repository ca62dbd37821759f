-- Queues get a note; the table of queues is rebuilt where the database can't alter it.

CREATE TABLE notes (
    id INTEGER NOT NULL PRIMARY KEY,
    text TEXT NOT NULL
);

INSERT INTO notes (id, text) VALUES (1, 'migrated');

ALTER TABLE queues ADD COLUMN note TEXT DEFAULT 'none' NOT NULL;

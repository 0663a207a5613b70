-- Having a schema to oneself, and putting a new store into it.

-- Whoever serves the store, or one beside it in the same database, has the same name as we unless its URL says otherwise.

-- name: others
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = current_setting('application_name')
    AND application_name <> '' AND pid <> pg_backend_pid()
ORDER BY pid;

-- name: own
SELECT pg_try_advisory_lock(%(lock_class)s::int, %(lock_key)s::int);

-- name: give_up
SELECT pg_advisory_unlock(%(lock_class)s::int, %(lock_key)s::int);

-- name: beat
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- name: may_create_schemas
SELECT has_database_privilege(current_database(), 'CREATE');

-- name: schema_exists
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s);

-- name: tables
SELECT relname FROM pg_class
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s) AND relkind IN ('r', 'p', 'v', 'm', 'f')
ORDER BY relname;

-- The first schema: vhosts, users, permissions, exchanges, queues, bindings, policies, parameters, and the store's own row.

CREATE TABLE parameters (
    vhost TEXT NOT NULL,
    component TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT parameters_pk PRIMARY KEY (vhost, component, name)
) WITHOUT ROWID;

CREATE TABLE store (
    id SMALLINT NOT NULL CONSTRAINT store_one_row_check CHECK (id = 1),
    uuid BLOB NOT NULL,
    format INTEGER NOT NULL,
    queue_id_high_water BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    CONSTRAINT store_pk PRIMARY KEY (id)
);

CREATE TABLE users (
    name TEXT NOT NULL,
    password_hash TEXT NOT NULL,
    tags TEXT NOT NULL,
    CONSTRAINT users_pk PRIMARY KEY (name)
) WITHOUT ROWID;

CREATE TABLE vhosts (
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    CONSTRAINT vhosts_pk PRIMARY KEY (name)
) WITHOUT ROWID;

CREATE TABLE bindings (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    vhost TEXT NOT NULL,
    source TEXT NOT NULL,
    destination_kind TEXT NOT NULL CONSTRAINT bindings_kind_check CHECK (destination_kind IN ('queue', 'exchange')),
    destination TEXT NOT NULL,
    routing_key BLOB NOT NULL,
    arguments TEXT NOT NULL,
    identity BLOB NOT NULL,
    CONSTRAINT bindings_vhost_source_identity_key UNIQUE (vhost, source, identity),
    CONSTRAINT bindings_vhost_fk FOREIGN KEY (vhost) REFERENCES vhosts (name) ON DELETE CASCADE
);

CREATE INDEX bindings_destination ON bindings (vhost, destination_kind, destination);

CREATE TABLE exchanges (
    vhost TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    auto_delete BOOLEAN NOT NULL,
    internal BOOLEAN NOT NULL,
    arguments TEXT NOT NULL,
    CONSTRAINT exchanges_pk PRIMARY KEY (vhost, name),
    CONSTRAINT exchanges_vhost_fk FOREIGN KEY (vhost) REFERENCES vhosts (name) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE permissions (
    vhost TEXT NOT NULL,
    username TEXT NOT NULL,
    configure TEXT NOT NULL,
    write TEXT NOT NULL,
    read TEXT NOT NULL,
    CONSTRAINT permissions_pk PRIMARY KEY (vhost, username),
    CONSTRAINT permissions_vhost_fk FOREIGN KEY (vhost) REFERENCES vhosts (name) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE INDEX permissions_username ON permissions (username);

CREATE TABLE policies (
    vhost TEXT NOT NULL,
    name TEXT NOT NULL,
    pattern TEXT NOT NULL,
    apply_to TEXT NOT NULL,
    priority INTEGER NOT NULL,
    definition TEXT NOT NULL,
    CONSTRAINT policies_pk PRIMARY KEY (vhost, name),
    CONSTRAINT policies_vhost_fk FOREIGN KEY (vhost) REFERENCES vhosts (name) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE queues (
    queue_id INTEGER NOT NULL CONSTRAINT queues_queue_id_check CHECK (queue_id > 0),
    vhost TEXT NOT NULL,
    name TEXT NOT NULL,
    auto_delete BOOLEAN NOT NULL,
    arguments TEXT NOT NULL,
    CONSTRAINT queues_pk PRIMARY KEY (queue_id),
    CONSTRAINT queues_vhost_name_key UNIQUE (vhost, name),
    CONSTRAINT queues_vhost_fk FOREIGN KEY (vhost) REFERENCES vhosts (name) ON DELETE CASCADE
);

CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

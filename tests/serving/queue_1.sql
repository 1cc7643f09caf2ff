CREATE TABLE tenants (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, token TEXT NOT NULL UNIQUE, operator INTEGER NOT NULL,
  created REAL NOT NULL);
CREATE TABLE uploads (
  tenant INTEGER NOT NULL, digest TEXT NOT NULL, total INTEGER NOT NULL, complete INTEGER NOT NULL DEFAULT 0,
  touched REAL NOT NULL, PRIMARY KEY (tenant, digest));
CREATE TABLE keysets (
  folder TEXT PRIMARY KEY, tenant INTEGER NOT NULL, artifact TEXT NOT NULL, client TEXT NOT NULL,
  bytes INTEGER NOT NULL DEFAULT 0, complete INTEGER NOT NULL DEFAULT 0, used REAL NOT NULL,
  UNIQUE (tenant, artifact, client));
CREATE TABLE jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, tenant INTEGER NOT NULL, id TEXT NOT NULL, artifact TEXT NOT NULL,
  client TEXT NOT NULL, folder TEXT NOT NULL, digest TEXT NOT NULL, input TEXT NOT NULL, bytes INTEGER NOT NULL,
  state TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0, total INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL,
  started REAL, ended REAL, worker TEXT, lease REAL, deaths INTEGER NOT NULL DEFAULT 0, error TEXT, result TEXT,
  result_bytes INTEGER, fetched REAL, UNIQUE (tenant, id));
CREATE INDEX jobs_by_state ON jobs (state, number);
CREATE INDEX jobs_by_tenant ON jobs (tenant, state);
CREATE TABLE workers (name TEXT PRIMARY KEY, process INTEGER NOT NULL, beat REAL NOT NULL, bytes INTEGER NOT NULL,
  servers INTEGER NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value REAL NOT NULL);
INSERT INTO tenants VALUES (1, 'first', 'hash', 0, 0);
INSERT INTO jobs (tenant, id, artifact, client, folder, digest, input, bytes, state, created, worker, lease, deaths)
  VALUES (1, 'jjjjjjjjjjjjjjjjjjjjjjjjjjjjjjjj', 'a', 'c', 'f', 'd', 'i', 1, 'running', 0, 'w', 1, 2);
INSERT INTO workers VALUES ('w', 1, 0, 0, 0);
PRAGMA user_version = 1;

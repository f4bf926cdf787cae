import postgres from 'postgres';

/** A database whose clock can be put forward, and stopped. */
export interface Travel {
  /** Puts the clock forward, for every connection at once. */
  advance(ms: number): Promise<void>;
  /** From now on only `advance` moves it: for what must not depend on how busy the machine is. */
  stop(): Promise<void>;
  close(): Promise<void>;
}

/**
 * Shadows `clock_timestamp()`, which all our statements tell the time by, with one of ours. Only for connections made
 * afterwards.
 */
export async function travel(databaseUrl: string): Promise<Travel> {
  const admin = postgres(databaseUrl, { max: 1, onnotice: () => {} });
  const name = new URL(databaseUrl).pathname.slice(1);
  await admin.unsafe(`
    create schema travel;
    create table travel.clock as select null::timestamptz as stopped, interval '0' as ahead;
    create function travel.clock_timestamp() returns timestamptz language sql volatile as
      'select coalesce(stopped, pg_catalog.clock_timestamp()) + ahead from travel.clock';
    alter database ${name} set search_path = travel, public, pg_catalog;`);
  return {
    async advance(ms) {
      await admin`update travel.clock set ahead = ahead + make_interval(secs => ${ms / 1000})`;
    },
    async stop() {
      await admin`update travel.clock set stopped = pg_catalog.clock_timestamp()`;
    },
    close: () => admin.end({ timeout: 5 }),
  };
}

import postgres from 'postgres';

/** A database whose clock can be put forward. */
export interface Travel {
  /** Puts the clock forward, for every connection at once. */
  advance(ms: number): Promise<void>;
  close(): Promise<void>;
}

/**
 * Shadows `clock_timestamp()`, which all our statements tell the time by, with one that can be put forward. Only for
 * connections made afterwards.
 */
export async function travel(databaseUrl: string): Promise<Travel> {
  const admin = postgres(databaseUrl, { max: 1, onnotice: () => {} });
  const name = new URL(databaseUrl).pathname.slice(1);
  await admin.unsafe(`
    create schema travel;
    create table travel.skipped (ms float8 not null);
    insert into travel.skipped values (0);
    create function travel.clock_timestamp() returns timestamptz language sql volatile as
      'select pg_catalog.clock_timestamp() + make_interval(secs => (select ms from travel.skipped) / 1000)';
    alter database ${name} set search_path = travel, public, pg_catalog;`);
  return {
    async advance(ms) {
      await admin`update travel.skipped set ms = ms + ${ms}`;
    },
    close: () => admin.end({ timeout: 5 }),
  };
}

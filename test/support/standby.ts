import { appendFile, chown, mkdir, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { run } from '../../deploy/local/processes.ts';
import { withSql } from './database.ts';
import { eventually } from './organization.ts';
import { startRelay } from './relay.ts';

/** Files of a running server that its copies must not have. */
const OWN_FILES = ['postmaster.pid', 'postmaster.opts', 'pg_wal', 'pg_replslot'];

/**
 * Copies the data folder of a running server, like `pg_basebackup`, which the npm package with the
 * binaries lacks. The copy has no WAL. It gets the WAL from the settings that are added to it.
 * @param primaryUrl the URL for the superuser
 * @param to a folder that does not exist yet, in a folder that every user can enter
 * @param signal the file that makes the server a standby, or recover to a target
 * @param settings lines of `postgresql.auto.conf`
 */
export async function copyServer(
  primaryUrl: string,
  to: string,
  signal: 'standby.signal' | 'recovery.signal',
  settings: readonly string[],
): Promise<void> {
  const [from, label] = await withSql(primaryUrl, async (sql) => {
    await sql`select pg_backup_start('copy', true)`;
    const [{ data_directory: folder } = {}] = await sql`show data_directory`;
    // A command keeps the owner of the files, and copies the rest if a file vanishes.
    const { output } = await run('cp', ['-a', folder, to]);
    const failures = output.split('\n').filter((line) => !/^$|No such file/.test(line));
    if (failures.length > 0) throw new Error(failures.join('\n'));
    const [{ labelfile } = {}] = await sql`select labelfile from pg_backup_stop(false)`;
    return [folder as string, labelfile as string];
  });
  await run('cp', ['-a', `${from}.password`, `${to}.password`]);
  for (const file of OWN_FILES) {
    await rm(join(to, file), { recursive: true, force: true });
  }
  const { uid, gid } = await stat(join(to, 'PG_VERSION'));
  for (const folder of ['pg_wal', 'pg_replslot']) {
    await mkdir(join(to, folder), { mode: 0o700 });
    await chown(join(to, folder), uid, gid);
  }
  for (const [file, text] of [
    ['backup_label', label],
    [signal, ''],
  ] as const) {
    await writeFile(join(to, file), text);
    await chown(join(to, file), uid, gid);
  }
  await appendFile(join(to, 'postgresql.auto.conf'), `${settings.join('\n')}\n`);
}

/** Makes each commit of a server wait for a standby, and waits until this is so. */
export async function waitForStandby(primaryUrl: string, name: string): Promise<void> {
  await changeServer(primaryUrl, `synchronous_standby_names = '${name}'`);
  await withSql(primaryUrl, (sql) =>
    eventually(async () => {
      const [row] = await sql`select from pg_stat_replication where sync_state = 'sync'`;
      return row ? true : null;
    }),
  );
}

/** Changes a setting of a running server. */
export async function changeServer(url: string, setting: string): Promise<void> {
  await withSql(url, async (sql) => {
    await sql.unsafe(`alter system set ${setting}`);
    await sql`select pg_reload_conf()`;
  });
}

/**
 * Starts a streaming standby of a running server, and waits until it has received everything. It is
 * asynchronous until `waitForStandby`.
 * @param primary its data folder must be persistent (`dataDir` of `startPostgres`)
 * @param name lowercase letters. The primary shows it as `application_name`
 * @param dataDir a folder that does not exist yet, in a folder that every user can enter
 */
export async function startStandby(
  primary: { readonly url: string; readonly port: number },
  { name, dataDir }: { readonly name: string; readonly dataDir: string },
) {
  const { hostname: host, username, password } = new URL(primary.url);
  // The stream has its own relay, so that it can lag while the primary serves clients.
  const stream = await startRelay({ host, port: primary.port });
  await withSql(
    primary.url,
    (sql) => sql`select pg_create_physical_replication_slot(${name}, true)`,
  );
  await copyServer(primary.url, dataDir, 'standby.signal', [
    `primary_conninfo = 'host=${stream.host} port=${stream.port} user=${username} password=${password} application_name=${name}'`,
    `primary_slot_name = '${name}'`,
    // A stream that lags is not a lost one.
    'wal_receiver_timeout = 0',
  ]);
  const server = await startPostgres({ dataDir });
  const [{ lsn } = {}] = await withSql(
    primary.url,
    (sql) => sql`select pg_current_wal_flush_lsn()::text as lsn`,
  );
  await withSql(server.url, (sql) =>
    eventually(async () => {
      const [{ done } = {}] = await sql`
        select coalesce(pg_last_wal_receive_lsn() >= ${lsn}::pg_lsn, false) as done`;
      return done || null;
    }),
  );
  return {
    ...server,
    /** Makes the standby receive nothing more. The primary notices no lost connection. */
    lag(): void {
      stream.hold();
    },
    /** Makes the standby the primary. Resolves when it accepts writes. */
    async promote() {
      // The stream is cut, because a primary that still runs must not be followed any longer.
      stream.cut();
      const [{ promoted } = {}] = await withSql(
        server.url,
        (sql) => sql`select pg_promote(true, 60) as promoted`,
      );
      if (!promoted) throw new Error('the standby was not promoted within a minute');
    },
    async stop() {
      await server.stop();
      stream.close();
    },
  };
}

import { execFileSync } from 'node:child_process';
import { chown, readFile, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { generate } from 'selfsigned';
import { openDatabase, run } from '../../../db/connection/client.ts';
import { DatabaseError } from '../../../db/connection/errors.ts';
import { tlsWarning } from '../../../db/connection/tls.ts';
import { migrate } from '../../../db/operations/migrate.ts';
import { startPostgres } from '../../../deploy/local/postgres.ts';
import { launch } from '../../../deploy/local/processes.ts';
import { explain } from '../../../deploy/problem.ts';
import { fresh, temporaryFolder, withSql } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { programCommand } from '../../support/programs.ts';
import { SITE_SETTINGS } from '../../support/site.ts';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
const folder = temporaryFolder(test.after.always);
const server = fresh(test, () => startPostgres({}));

/** Makes a CA, and a certificate of it for the host name `localhost`. */
async function makeCertificates() {
  const ca = await generate([{ name: 'commonName', value: 'our CA' }], {
    algorithm: 'sha256',
    extensions: [
      { name: 'basicConstraints', cA: true, critical: true },
      { name: 'keyUsage', keyCertSign: true, critical: true },
    ],
  });
  const own = await generate([{ name: 'commonName', value: 'localhost' }], {
    algorithm: 'sha256',
    ca: { key: ca.private, cert: ca.cert },
    extensions: [{ name: 'subjectAltName', altNames: [{ type: 2, value: 'localhost' }] }],
  });
  return { ca: ca.cert, cert: own.cert, key: own.private };
}

/** Writes a file that only the server's user may read. */
async function writeOnServer(path: string, text: string): Promise<void> {
  const { uid, gid } = await stat(dirname(path));
  await writeFile(path, text, { mode: 0o600 });
  await chown(path, uid, gid);
}

test.before(async () => {
  const { ca, cert, key } = await makeCertificates();
  await writeFile(join(folder, 'ca.pem'), ca);
  await writeFile(join(folder, 'other.pem'), (await makeCertificates()).ca);
  const settings = await withSql(server.url, (sql) => sql`show data_directory`);
  const data = settings[0]?.data_directory;
  await writeOnServer(`${data}/server.crt`, cert);
  await writeOnServer(`${data}/server.key`, key);
  await setTls(true);
});

const setTls = (on: boolean) =>
  withSql(server.url, async (sql) => {
    await sql.unsafe(`alter system set ssl = ${on ? 'on' : 'off'}`);
    await sql`select pg_reload_conf()`;
  });

function urlWith(parameters: string, host = 'localhost'): string {
  const url = new URL(server.url);
  url.hostname = host;
  return `${url.href}?${parameters}`;
}

async function isEncrypted(url: string): Promise<boolean> {
  const db = openDatabase({
    url,
    poolSize: 1,
    applicationName: 'test',
    deadlineMs: 3000,
  });
  try {
    const [row] = await run<{ ssl: boolean }>(db)`
      select ssl from pg_stat_ssl where pid = pg_backend_pid()`;
    return row?.ssl ?? false;
  } finally {
    await db.close();
  }
}

const verified = (ca: string) => `sslmode=verify-full&sslrootcert=${join(folder, ca)}`;

test.serial('PostgreSQL does not compile our queries, with TLS or without', async (t) => {
  const [byDefault] = await withSql(server.url, (sql) => sql`show jit`);
  t.deepEqual(byDefault, { jit: 'on' });
  for (const parameters of ['sslmode=disable', verified('ca.pem')]) {
    const url = urlWith(parameters);
    const db = openDatabase({ url, poolSize: 1, applicationName: 'test' });
    t.teardown(() => db.close());
    t.deepEqual(await run(db)`show jit`, [{ jit: 'off' }]);
  }
});

test.serial('sslmode and sslrootcert in DATABASE_URL work as in psql', async (t) => {
  t.true(await isEncrypted(urlWith(verified('ca.pem'))));
  await t.notThrowsAsync(migrate(urlWith(verified('ca.pem'))));
  t.true(await isEncrypted(urlWith('sslmode=require')));
  t.false(await isEncrypted(urlWith('sslmode=disable')));
});

test.serial('a server with an untrusted certificate is refused', async (t) => {
  const urls = [
    urlWith(verified('other.pem')),
    urlWith('sslmode=verify-full'),
    urlWith('sslmode=verify-full&sslrootcert=system'),
    // The certificate does not have this address.
    urlWith(verified('ca.pem'), '127.0.0.1'),
  ];
  for (const url of urls) {
    const error = await t.throwsAsync(isEncrypted(url), { instanceOf: DatabaseError });
    t.regex(explain(error, [], url), /certificate that is not trusted .* sslrootcert/);
  }
});

test.serial('a missing CA file is named', async (t) => {
  const url = urlWith(verified('none.pem'));
  const error = await t.throwsAsync(isEncrypted(url));
  t.regex(explain(error, [], url), /cannot use the file .*none\.pem/);
});

test.serial('nothing is sent to a server that has no TLS', async (t) => {
  await setTls(false);
  await t.throwsAsync(isEncrypted(urlWith(verified('ca.pem'))));
});

test('a connection without checked TLS causes a warning if it leaves the machine', (t) => {
  const far = 'postgres://user:password@db.example.com:5432/name';
  for (const url of [far, `${far}?sslmode=require`, 'postgres://user@10.0.0.5/name']) {
    t.regex(tlsWarning(url) ?? '', /add \?sslmode=verify-full/, url);
  }
  const fine = [
    `${far}?sslmode=verify-full`,
    `${far}?sslrootcert=ca.pem`,
    `${far}?sslmode=disable`,
    'postgres://user@localhost/name',
    'postgres://user@127.0.0.2:5432/name',
    'postgres://user@[::1]/name',
    'postgres:///name',
  ];
  for (const url of fine) t.is(tlsWarning(url), null, url);
});

test('each example of a database URL in the pages sets TLS', async (t) => {
  const patterns = ['*.md', '*.yaml', '*.example'];
  const files = execFileSync('git', ['ls-files', ...patterns], {
    cwd: ROOT,
    encoding: 'utf8',
  });
  const examples: string[] = [];
  for (const file of files.trim().split('\n')) {
    const text = await readFile(join(ROOT, file), 'utf8');
    for (const [url] of text.matchAll(/postgres:\/\/.*/g)) {
      examples.push(`${file} ${url}`);
    }
  }
  t.true(examples.length > 5);
  t.deepEqual(
    examples.filter((example) => !/\?sslmode=(verify-full|disable)/.test(example)),
    [],
  );
});

for (const name of ['api', 'worker', 'migrate'] as const) {
  test(`the program ${name} warns if DATABASE_URL has no TLS`, async (t) => {
    const env = { DATABASE_URL: 'postgres://user@db.invalid/name', ...SITE_SETTINGS };
    const program = launch({ name, ...programCommand(name, [], { env }) });
    t.teardown(program.stop);
    const warned = await eventually(
      async () => /sslmode=verify-full/.test(program.tail()) || null,
    );
    t.true(warned);
    t.notRegex(program.tail(), /user@/);
  });
}

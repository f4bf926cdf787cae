import { link, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import clientPackage from '../../../../api/clients/typescript/package.json' with {
  type: 'json',
};
import { rotateKey } from '../../../../db/accounts/keys.ts';
import {
  csvOf,
  ENRICH,
  folderWith,
  installCommand,
  resultOf,
  type Setting,
  validNpisFrom,
} from '../../../support/command.ts';
import { startGateway, work } from '../../../support/customer.ts';
import { fresh, temporaryFolder } from '../../../support/database.ts';
import { BY, eventually } from '../../../support/organization.ts';
import { startApi } from '../../../support/stack.ts';

// Tests the options that decide where the command reads and writes.

const api = fresh(test, () => startApi());
const { project, run } = installCommand(test, api);

test('a result that cannot be written is an error before anything is submitted', async (t) => {
  const client = await api.organization(100);
  const { url, passed } = await startGateway(t, api.baseUrl);
  const folder = await folderWith(t, csvOf(validNpisFrom(60_000, 1)));
  await link(join(folder, 'contacts.csv'), join(folder, 'same.csv'));
  await writeFile(join(folder, 'old.csv'), 'old');
  const cases = {
    'same.csv': 'same.csv is the input. Name another file with --out.',
    'old.csv':
      'old.csv exists. Replace it with --force, or name another file with --out.',
    '.': '. is not a file. Name a file with --out.',
    'none/result.csv':
      "The folder none does not exist or can't be written to. Name another file with --out.",
  };
  for (const [out, message] of Object.entries(cases)) {
    const args = ['enrich', 'contacts.csv', '--out', out];
    const { code, stderr } = await run(folder, args, { client, url });
    t.is(stderr, `npi-email-enrichment: ${message}\n`);
    t.is(code, 2);
  }
  t.deepEqual(passed, []);
  t.is(await readFile(join(folder, 'old.csv'), 'utf8'), 'old');
  work(t, api, client.organizationId);
  const forced = ['enrich', 'contacts.csv', '--out', 'old.csv', '--force'];
  t.is((await run(folder, forced, { client, url })).code, 0);
  t.regex(await readFile(join(folder, 'old.csv'), 'utf8'), /,completed,/);
});

test('a result can be the input again, to look up only rows without an email', async (t) => {
  const client = await api.organization(100);
  const { url, passed } = await startGateway(t, api.baseUrl);
  const npis = validNpisFrom(61_000, 3);
  const [found = '', unknown = '', third = ''] = npis;
  const header = 'npi,enriched_email,enriched_status,enriched_reason';
  const rows = [
    `${found},kept@example.com,completed,old`,
    `${unknown},,failed,again`,
    `${third},,not_asked,again`,
  ];
  const folder = await folderWith(t, [header, ...rows].join('\n'));
  work(t, api, client.organizationId);
  const { code, stderr } = await run(folder, ENRICH, { client, url });
  t.is(code, 0, stderr);
  t.regex(stderr, /^Rows that keep an email from an earlier run: 1\.\n/);
  const { body = '' } = passed.find(({ method }) => method === 'POST') ?? {};
  t.deepEqual(JSON.parse(body).npis, [unknown, third]);
  const [, ...lines] = (await resultOf(folder)).trimEnd().split('\n');
  t.is(lines[0], `${found},kept@example.com,,,completed,old`);
  t.is(lines[1], `${unknown},,,,not_found,no email found`);
  t.regex(
    lines[2] ?? '',
    /^\d+,someone.\d+@practice.example,professional,.*,completed,$/,
  );
  await writeFile(join(folder, 'done.csv'), [header, rows[0]].join('\n'));
  const done = await run(folder, ['enrich', 'done.csv', '--out', 'new.csv'], { client });
  t.is(
    done.stderr,
    'Rows that keep an email from an earlier run: 1.\nnpi-email-enrichment: All NPIs of done.csv have an email. To look them up again, remove its enriched_ columns.\n',
  );
  t.is(done.code, 2);
});

test('with -, the client reads standard input and writes standard output', async (t) => {
  const client = await api.organization(100);
  work(t, api, client.organizationId);
  const [found = '', unknown = ''] = validNpisFrom(62_000, 2);
  const input = `${found}\n${unknown}\n`;
  const folder = temporaryFolder(t.teardown);
  const args = ['enrich', '-', '--out', '-'];
  const { code, stdout, stderr } = await run(folder, args, { client, input });
  t.is(code, 0, stderr);
  t.regex(stderr, /^standard input has no column names, so its columns are numbered\.\n/);
  const [header, first, second, ...others] = stdout.split('\n');
  t.is(
    header,
    '1,enriched_email,enriched_email_type,enriched_email_last_validated,enriched_status,enriched_reason',
  );
  t.is(first?.split(',')[1], `someone.${found}@practice.example`);
  t.is(second, `${unknown},,,,not_found,no email found`);
  t.deepEqual(others, ['']);
  t.deepEqual(await readdir(folder), []);
});

test('with --json, the client prints a summary, also after an error', async (t) => {
  const client = await api.organization(100);
  work(t, api, client.organizationId);
  const folder = await folderWith(t, csvOf([...validNpisFrom(63_000, 2), '12']));
  const summaryOf = async (args: readonly string[], setting: Setting = { client }) => {
    const { code, stdout } = await run(folder, [...args, '--json'], setting);
    const summary = JSON.parse(stdout);
    t.is(summary.exit_code, code);
    return summary;
  };
  const read = {
    rows: 3,
    npis: 2,
    max_credits: 2,
    unusable_rows: [{ line: 4, cell: '12', problem: 'has 2 instead of 10 digits' }],
  };
  const dry = await summaryOf(['enrich', 'contacts.csv', '--dry-run'], {});
  t.deepEqual(dry, { exit_code: 0, error: null, ...read });
  const totals = { completed: 1, not_found: 1, failed: 0, credits_used: 1 };
  const done = await summaryOf(ENRICH);
  t.deepEqual(done, { exit_code: 0, error: null, ...read, ...totals });
  const usage = await summaryOf(['enrich']);
  const message = 'Name one file: enrich FILE. See --help.';
  t.deepEqual(usage, {
    exit_code: 2,
    error: { code: 'usage', message, request_id: null },
  });
  const { error } = await summaryOf(['enrich', 'contacts.csv', '--out', 'new.csv'], {
    client: { ...client, apiKey: 'npe_wrong' },
  });
  t.is(error.code, 'api_key_invalid');
  t.regex(error.request_id, /^[\w-]+$/);
});

test('the command says when the key ends, after it was replaced', async (t) => {
  const client = await api.organization(100);
  work(t, api, client.organizationId);
  const { replaced } = await rotateKey(api.db, BY, client.keyId, 3_600_000);
  const folder = await folderWith(t, csvOf(validNpisFrom(65_000, 1)));
  const end = replaced.expiresAt?.toISOString();
  const isWarned = async () => {
    const { code, stderr } = await run(folder, [...ENRICH, '--force'], { client });
    t.is(code, 0, stderr);
    return stderr.includes(`This API key was replaced and works until ${end}. `);
  };
  // API processes remember a key for a second.
  t.true(await eventually(isWarned));
});

test('a run prints no warning that SQLite is experimental, as in Node.js 22', async (t) => {
  const client = await api.organization(100);
  work(t, api, client.organizationId);
  const folder = await folderWith(t, csvOf(validNpisFrom(64_000, 1)));
  const warning =
    "const load=process.getBuiltinModule;process.getBuiltinModule=(id)=>{if(id==='node:sqlite')process.emitWarning('SQLite is experimental');return load(id)}";
  const nodeOptions = `--import=data:text/javascript,${encodeURIComponent(warning)}`;
  const { code, stderr } = await run(folder, ENRICH, { client, nodeOptions });
  t.is(code, 0, stderr);
  t.notRegex(stderr, /experimental/);
});

test('--version prints the version, and an old Node.js gets one sentence', async (t) => {
  const { version, engines } = clientPackage;
  t.deepEqual(await run(project, ['--version']), {
    code: 0,
    stdout: `${version}\n`,
    stderr: '',
  });
  const old =
    "Object.defineProperty(process,'versions',{value:{...process.versions,node:'22.12.0'}})";
  const nodeOptions = `--import=data:text/javascript,${encodeURIComponent(old)}`;
  const { code, stdout, stderr } = await run(project, ['--version'], { nodeOptions });
  t.deepEqual([code, stdout], [1, '']);
  t.is(
    stderr,
    `npi-email-enrichment needs Node.js ${engines.node.slice(2)} or later. This is 22.12.0. Get a newer one at https://nodejs.org.\n`,
  );
});

import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { readFile, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import test from 'ava';
import {
  csvOf,
  ENRICH,
  emailsOf,
  folderWith,
  installCommand,
  resultOf,
  validNpisFrom,
} from '../../../support/command.ts';
import { emailOf, type Passed, startGateway, work } from '../../../support/customer.ts';
import { fresh, freshDatabase } from '../../../support/database.ts';
import { grant } from '../../../support/organization.ts';
import { startApi } from '../../../support/stack.ts';

// Tests the published client: packed, installed into an empty folder, and run there as a program.

const ROOT = fileURLToPath(new URL('../../../..', import.meta.url));
const BIN = join(ROOT, 'node_modules', '.bin');
const { url: databaseUrl, sql } = freshDatabase(test);
const api = fresh(test, () => startApi({ databaseUrl }));
const { project, run } = installCommand(test, api);

test('the result file has the rows, columns, and format of the input, plus results', async (t) => {
  const client = await api.organization(100);
  work(t, api, client.organizationId);
  const [found = '', unknown = ''] = validNpisFrom(0, 2);
  const lines = [
    '"Name; title";\u00dcber; NPI ;enriched_email;phone',
    `"Smith; ""Jo"", MD";=1+1; ${found} ;old@example.com;+1 555`,
    `Twice;;${found};;`,
    `"two\r\nlines";;${unknown};;`,
    'Blank;;;;',
    'Bad;;12345;;',
    'Short',
    '',
    `Long;;${unknown};;;more`,
  ];
  const folder = await folderWith(t, `\ufeff${lines.join('\r\n')}\r\n`);
  const { code, stderr } = await run(folder, [...ENRICH, '--column', 'npi'], { client });
  const [blank, bad, short, progress, ...others] = stderr.split('\n');
  t.deepEqual(
    [blank, bad, short],
    [
      'Line 6: no NPI.',
      'Line 7: NPI "12345" has 5 instead of 10 digits.',
      'Line 8: no NPI.',
    ],
  );
  t.regex(
    progress ?? '',
    /^\[#{20}\] 2 of 2, \d+ a minute, 0 min left: 1 found, 1 not, 0 failed, 1 credit$/,
  );
  t.deepEqual(others, ['']);
  t.is(code, 0);
  const text = await resultOf(folder);
  const dated = text.replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, 'TIME');
  const email = emailOf(found);
  t.deepEqual(dated.split('\r\n'), [
    '\ufeff"Name; title";\u00dcber; NPI ;phone;;enriched_email;enriched_email_type;enriched_email_last_validated;enriched_status;enriched_reason',
    `"Smith; ""Jo"", MD";=1+1; ${found} ;+1 555;;${email};professional;TIME;completed;`,
    `Twice;;${found};;;${email};professional;TIME;completed;`,
    '"two',
    `lines";;${unknown};;;;;;not_found;no email found`,
    'Blank;;;;;;;;not_asked;no NPI',
    'Bad;;12345;;;;;;not_asked;has 5 instead of 10 digits',
    'Short;;;;;;;;not_asked;no NPI',
    `Long;;${unknown};;more;;;;not_found;no email found`,
    '',
  ]);
  await t.throwsAsync(stat(join(folder, 'result.csv.state.json')));
});

test('the result keeps a first line that names the separator, as Excel reads it', async (t) => {
  const client = await api.organization(100);
  const [npi = ''] = validNpisFrom(100, 1);
  work(t, api, client.organizationId);
  const folder = await folderWith(t, `sep=;\nname;npi\nx;${npi}\n`);
  t.is((await run(folder, ENRICH, { client })).code, 0);
  t.regex(await resultOf(folder), /^sep=;\nname;npi;enriched_email;/);
});

test('an address that a spreadsheet would run as a formula is escaped in the result', async (t) => {
  const client = await api.organization(100);
  const [npi = ''] = validNpisFrom(100, 1);
  await sql`insert into stored_emails (npi, email, email_type, last_validated_at, source, verdict, reason)
    values (${npi}, '=cmd@practice.example', 'professional', now(), 'test', 'valid', 'imported')`;
  const folder = await folderWith(t, csvOf([npi]));
  t.is((await run(folder, ENRICH, { client })).code, 0);
  t.deepEqual(await emailsOf(folder), ["'=cmd@practice.example"]);
});

test('with --dry-run and no key, the client sends no request and prints the maximum', async (t) => {
  const folder = await folderWith(
    t,
    csvOf([...validNpisFrom(0, 3), ...validNpisFrom(0, 2), 'none']),
  );
  const { code, stdout } = await run(folder, [
    'enrich',
    'contacts.csv',
    '--type',
    'personal',
    '--dry-run',
  ]);
  t.is(code, 0);
  t.is(
    stdout,
    '6 rows, 1 without a usable NPI: 3 different NPIs to look up.\nAt most 9 credits: 3 for each email found.\nWith an API key, this also leaves out free repeats and retired NPIs.\n',
  );
});

test('with --dry-run and a key, the client asks the service for the real maximum', async (t) => {
  const client = await api.organization(100);
  work(t, api, client.organizationId);
  const [found = '', other = ''] = validNpisFrom(70_000, 2);
  const folder = await folderWith(t, csvOf([found]));
  t.is((await run(folder, ENRICH, { client })).code, 0);
  await writeFile(join(folder, 'more.csv'), csvOf([found, other, '12']));
  const { credits } = client;
  const before = await credits();
  const dry = (...args: string[]) =>
    run(folder, ['enrich', 'more.csv', '--dry-run', ...args], { client });
  t.is(
    (await dry()).stdout,
    '3 rows, 1 without a usable NPI: 2 different NPIs to look up.\n1 lookup, 1 free repeat, 0 organizations, 0 deactivated, 0 not NPIs.\nAt most 1 credit: 1 for each email found.\n',
  );
  const { max_credits, check } = JSON.parse((await dry('--json')).stdout);
  t.is(max_credits, 1);
  t.like(check, { lookup: 1, free_repeat: 1 });
  const personal = JSON.parse((await dry('--json', '--type', 'personal')).stdout);
  t.is(personal.max_credits, 6);
  t.like(personal.check, { lookup: 2, free_repeat: 0 });
  t.deepEqual(await credits(), before);
});

test('with wrong options, the client exits with 2 and sends no request', async (t) => {
  const client = await api.organization(100);
  const { url, passed } = await startGateway(t, api.baseUrl);
  const folder = await folderWith(t, csvOf(validNpisFrom(0, 1)));
  const cases: readonly [readonly string[], RegExp][] = [
    [[], /Name one file: enrich FILE/],
    [['enrich', 'contacts.csv'], /Name a file for the result with --out/],
    [
      ['enrich', 'contacts.csv', '--out', './contacts.csv'],
      /Name another file with --out/,
    ],
    [[...ENRICH, '--colum', 'npi'], /--colum/],
    [[...ENRICH, '--column', 'id'], /no column "id". It has: name, npi\./],
    [[...ENRICH, '--type', 'work'], /any, professional, personal/],
    [[...ENRICH, '--max-credits', '1.5'], /whole number/],
  ];
  for (const [args, message] of cases) {
    const { code, stderr } = await run(folder, args, { client, url });
    t.regex(stderr, message);
    t.is(code, 2, stderr);
  }
  t.regex((await run(folder, ENRICH)).stderr, /NPI_EMAIL_API_KEY/);
  t.deepEqual(passed, []);
  const help = await run(folder, ['--help']);
  t.is(help.code, 0);
  for (const option of [
    '--out',
    '--force',
    '--column',
    '--type',
    '--max-credits',
    '--dry-run',
    '--json',
    '--url',
    '--key-file',
    '--version',
  ]) {
    t.true(help.stdout.includes(option));
  }
});

test('a run of 500 NPIs that is killed twice is charged once and never rate-limited', async (t) => {
  const client = await api.organization(1000, 100);
  const npis = validNpisFrom(10_000, 500);
  const folder = await folderWith(t, csvOf(npis));
  work(t, api, client.organizationId);
  let kill = (_signal: NodeJS.Signals) => {};
  const onStart = (end: typeof kill) => {
    kill = end;
  };
  // The first kill comes before the client gets the response to its third submit. The second kill
  // comes during a poll.
  const moments = [
    ({ method }: Passed) => method === 'POST' && submits() === 3,
    ({ path }: Passed) => path.includes('/batch/') && submits() > 5,
  ];
  const { url, passed } = await startGateway(t, api.baseUrl, (request, moment) => {
    if (moment === 'before' || !moments[0]?.(request)) return null;
    moments.shift();
    kill('SIGKILL');
    return 'broken';
  });
  const submits = () => passed.filter(({ method }) => method === 'POST').length;
  const setting = { client, url, onStart };
  for (const left of [1, 0]) {
    t.is((await run(folder, ENRICH, setting)).code, null);
    t.is(moments.length, left);
    await t.throwsAsync(resultOf(folder));
  }
  const stateFile = join(folder, 'result.csv.state.json');
  t.is((await stat(stateFile)).mode & 0o777, 0o600);
  const state = await readFile(stateFile, 'utf8');
  t.false(state.includes(client.apiKey));
  const { code, stdout, stderr } = await run(folder, ENRICH, setting);
  t.is(code, 0, stderr);
  t.is(stdout, 'Wrote result.csv.\n');
  t.deepEqual(
    await emailsOf(folder),
    npis.map((npi) => emailOf(npi) ?? ''),
  );
  t.deepEqual(
    passed.filter(({ status }) => status === 429),
    [],
  );
  const [{ batches, requests } = {}] =
    await sql`select count(distinct batch_id)::int as batches,
    count(*)::int as requests from requests where organization_id = ${client.organizationId}`;
  t.deepEqual([batches, requests], [9, 500]);
  t.deepEqual(await client.credits(), { balance: 750, total: 1000, used: 250 });
});

test('only the user can read the result file, even if a killed run left a part of it', async (t) => {
  const client = await api.organization(100);
  work(t, api, client.organizationId);
  const folder = await folderWith(t, csvOf(validNpisFrom(50_000, 1)));
  await writeFile(join(folder, 'result.csv.new'), 'a part', { mode: 0o644 });
  t.is((await run(folder, ENRICH, { client })).code, 0);
  t.is((await stat(join(folder, 'result.csv'))).mode & 0o777, 0o600);
});

test('with the http URL of a remote host, the client exits with 2 and sends nothing', async (t) => {
  const client = await api.organization(100);
  const folder = await folderWith(t, csvOf(validNpisFrom(50_010, 1)));
  const { code, stdout, stderr } = await run(folder, ENRICH, {
    client,
    url: 'http://api.example.com',
  });
  t.deepEqual([code, stdout], [2, '']);
  t.regex(
    stderr,
    /^npi-email-enrichment: The address of the service would send your API key unencrypted\. .*\n$/,
  );
});

test('after Ctrl+C, the client exits with 130, leaves its state file, and can continue', async (t) => {
  const client = await api.organization(100);
  const folder = await folderWith(t, csvOf(validNpisFrom(20_000, 2)));
  let kill = (_signal: NodeJS.Signals) => {};
  const onStart = (end: typeof kill) => {
    kill = end;
  };
  const { url } = await startGateway(t, api.baseUrl, ({ method }, moment) => {
    if (method === 'POST' && moment === 'after') kill('SIGINT');
    return null;
  });
  const { code, stderr } = await run(folder, ENRICH, { client, url, onStart });
  t.is(code, 130);
  t.regex(stderr, /Repeat the command to continue\./);
  await t.throwsAsync(resultOf(folder));
  await t.throwsAsync(stat(join(folder, 'result.csv.state.json.lock')));
  work(t, api, client.organizationId);
  t.is((await run(folder, ENRICH, { client, url })).code, 0);
  t.is((await client.credits()).used, 1);
});

test('without enough credits, the client exits with 3, keeps results, and can continue', async (t) => {
  const client = await api.organization(50);
  const npis = validNpisFrom(30_000, 120);
  const folder = await folderWith(t, csvOf(npis));
  work(t, api, client.organizationId);
  const short = await run(folder, ENRICH, { client });
  t.is(short.code, 3);
  t.regex(short.stderr, /Available: 0.* With more credits, repeat the command/);
  const emails = npis.map((npi) => emailOf(npi) ?? '');
  t.is((await emailsOf(folder)).filter((email) => email !== '').length, 50);
  t.regex(await resultOf(folder), /,not_asked,not enough credits\n$/);
  t.is((await run(folder, [...ENRICH, '--max-credits', '50'], { client })).code, 3);
  t.regex(await resultOf(folder), /,not_asked,above --max-credits\n$/);
  await grant(api.db, client.organizationId, 20);
  // The last NPI could cost one more credit than the 60 that the run costs.
  t.is((await run(folder, [...ENRICH, '--max-credits', '61'], { client })).code, 0);
  t.deepEqual(await emailsOf(folder), emails);
  t.is((await client.credits()).used, 60);
});

test('on an error the client exits with 1 and prints the request id, but not the key', async (t) => {
  const client = await api.organization(100);
  const folder = await folderWith(t, csvOf(validNpisFrom(40_000, 1)));
  await writeFile(join(folder, 'key.txt'), `${client.apiKey}x\n`);
  const args = [...ENRICH, '--key-file', 'key.txt', '--url', api.baseUrl];
  const refused = await run(folder, args);
  t.is(refused.code, 1);
  t.regex(refused.stderr, /The API key is not valid.* Quote [\w-]+ to support\./);
  const hostile = {
    status: 403,
    body: JSON.stringify({ code: 'x', detail: 'one\u001b[2J\u009b2J\u202etwo' }),
  };
  const { url } = await startGateway(t, api.baseUrl, () => hostile);
  t.regex(
    (await run(folder, [...args, '--url', url])).stderr,
    /one\\u001b\[2J\\u009b2J\\u202etwo/,
  );
  await writeFile(join(folder, 'key.txt'), `${client.apiKey}\n`);
  work(t, api, client.organizationId);
  const { code, stdout, stderr } = await run(folder, args);
  t.is(code, 0);
  t.false(`${stdout}${stderr}${refused.stderr}`.includes(client.apiKey));
});

test("the example in the client's README compiles as TypeScript and runs", async (t) => {
  const client = await api.organization(100);
  work(t, api, client.organizationId);
  const page = await readFile(join(ROOT, 'api/clients/typescript/README.md'), 'utf8');
  const [example = ''] = [...page.matchAll(/^```ts\n(.*?)^```$/gms)].map(
    ([, block = '']) => block,
  );
  await writeFile(join(project, 'example.mts'), example);
  const strict = [
    '--noEmit',
    '--strict',
    '--module',
    'nodenext',
    '--target',
    'es2024',
    '--types',
    'node',
  ];
  const roots = ['--typeRoots', join(ROOT, 'node_modules/@types')];
  const compiled = promisify(execFile)(
    join(BIN, 'tsc'),
    [...strict, ...roots, 'example.mts'],
    {
      cwd: project,
    },
  );
  await t.notThrowsAsync(compiled);
  const env = { NPI_EMAIL_API_KEY: client.apiKey, NPI_EMAIL_URL: api.baseUrl };
  const { stdout } = await promisify(execFile)(process.execPath, ['example.mts'], {
    cwd: project,
    env,
  });
  t.is(
    stdout,
    `2000000010 completed ${emailOf('2000000010')}\n2000000044 completed ${emailOf('2000000044')}\n2 credits\n`,
  );
});

const MODULE = `
import { EnrichmentClient, EnrichmentError, enrich, type ErrorCode, type Options } from 'npi-email-enrichment';

const unset: string | undefined = process.env['UNSET'];
const options: Options = { apiKey: unset, baseUrl: unset, signal: undefined, maxCredits: unset ? 1 : undefined };
export const first = (await enrich([], options)).results[0]?.email;
export const ledger = new EnrichmentClient(options).getLedger({ since: undefined });
export const code: ErrorCode = new EnrichmentError('string_type', '').code;
`;
const COMMON_MODULE = `
import enrichment = require('npi-email-enrichment');

const error: Error = new enrichment.EnrichmentError('timed_out', '');
console.log(error, enrichment.enrich satisfies (npis: string[], options: enrichment.Options) => object);
`;
const STRICT = [
  '--noEmit',
  '--strict',
  '--exactOptionalPropertyTypes',
  '--noUncheckedIndexedAccess',
  '--noPropertyAccessFromIndexSignature',
  '--isolatedModules',
  '--verbatimModuleSyntax',
];
const RESOLUTIONS = [
  ['node16', 'node16', 'module.mts', 'common.cts'],
  ['nodenext', 'nodenext', 'module.mts', 'common.cts'],
  ['esnext', 'bundler', 'module.mts'],
] as const;

test('programs of both module systems compile with every strict flag', async (t) => {
  await writeFile(join(project, 'module.mts'), MODULE);
  await writeFile(join(project, 'common.cts'), COMMON_MODULE);
  const types = ['--types', 'node', '--typeRoots', join(ROOT, 'node_modules/@types')];
  for (const [module, resolution, ...files] of RESOLUTIONS) {
    const modules = ['--module', module, '--moduleResolution', resolution];
    const args = [...STRICT, ...modules, '--target', 'es2024', ...types, ...files];
    const options = { cwd: project };
    const compiled = promisify(execFile)(join(BIN, 'tsc'), args, options);
    t.is(await compiled.then(() => '').catch(({ stdout }) => stdout), '', resolution);
  }
});

test('import and require load the same package', async (t) => {
  const program = `
    import { createRequire } from 'node:module';
    import { EnrichmentError } from 'npi-email-enrichment';
    const required = createRequire(import.meta.url)('npi-email-enrichment');
    console.log(required.EnrichmentError === EnrichmentError);`;
  await writeFile(join(project, 'both.mjs'), program);
  const done = await promisify(execFile)(process.execPath, ['both.mjs'], {
    cwd: project,
  });
  t.deepEqual(done, { stdout: 'true\n', stderr: '' });
});

test('an error without a response names the proxy that Node.js does not use', async (t) => {
  const proxy = createServer();
  t.teardown(() => proxy.close());
  proxy.on('connect', (_, socket) => socket.end('HTTP/1.1 407 No\r\n\r\n'));
  await once(proxy.listen(0, '127.0.0.1'), 'listening');
  const { port } = proxy.address() as AddressInfo;
  const program = `
    import { EnrichmentClient } from 'npi-email-enrichment';
    const client = new EnrichmentClient({
      apiKey: 'npe_key',
      baseUrl: 'https://api.invalid',
      patienceMs: 0,
    });
    await client.getCredits().catch(({ message }) => console.log(message));`;
  await writeFile(join(project, 'proxied.mjs'), program);
  const messageWith = async (env: NodeJS.ProcessEnv) => {
    const options = { cwd: project, env };
    const { stdout } = await promisify(execFile)(
      process.execPath,
      ['proxied.mjs'],
      options,
    );
    return stdout;
  };
  const refused = 'No response from https://api.invalid: ';
  const HTTPS_PROXY = `http://127.0.0.1:${port}`;
  const direct = await messageWith({});
  t.true(direct.startsWith(refused));
  t.notRegex(direct, /PROXY/);
  const ignored = await messageWith({ HTTPS_PROXY });
  t.true(ignored.startsWith(refused));
  t.regex(ignored, /To use the proxy of HTTPS_PROXY, set NODE_USE_ENV_PROXY=1, /);
  const used = await messageWith({ HTTPS_PROXY, NODE_USE_ENV_PROXY: '1' });
  t.is(used, `${refused}Proxy response (407) !== 200 when HTTP Tunneling.\n`);
});

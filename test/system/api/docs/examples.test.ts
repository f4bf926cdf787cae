import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { readPackages } from '../../../../api/docs/packages.ts';
import { installClient } from '../../../support/customer.ts';
import { fresh, temporaryFolder } from '../../../support/database.ts';
import { examples, program } from '../../../support/documented/examples.ts';
import { documentedPython, installPackage } from '../../../support/python.ts';
import { SITE } from '../../../support/site.ts';
import { startStack } from '../../../support/stack.ts';

// Runs the examples of api/docs/ as a reader pastes them: the shell lines of a page in order in one
// shell, and each program by the command in its first line.

const ROOT = fileURLToPath(new URL('../../../..', import.meta.url));
const python = await documentedPython();
const stack = fresh(test, () => startStack({ allSources: true }));
const client = fresh(test, () => stack.organization(1000));
const folder = temporaryFolder(test.after.always);
test.before(async () => {
  await installClient(folder, stack.baseUrl);
  const sdk = 'node_modules/@modelcontextprotocol';
  await symlink(join(ROOT, sdk), join(folder, sdk));
  if (python) await installPackage(python, stack.baseUrl, folder);
});

/** Fills in the address and the key, as a reader would. */
const filledIn = (script: string) =>
  script
    .replaceAll(SITE.publicUrl, stack.baseUrl)
    .replaceAll('npe_test_...', client.apiKey);

async function run(
  command: string,
  args: readonly string[],
  cwd: string,
): Promise<string> {
  const { PATH, HOME, NODE_EXTRA_CA_CERTS } = process.env;
  const env = {
    PATH,
    HOME,
    NODE_EXTRA_CA_CERTS,
    NPI_EMAIL_URL: stack.baseUrl,
    NPI_EMAIL_API_KEY: client.apiKey,
    npm_config_prefer_offline: 'true',
    npm_config_audit: 'false',
  };
  const child = spawn(command, args, { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] });
  const [out, err, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close'),
  ]);
  if (code !== 0)
    throw new Error(`${command} ${args.join(' ')} ended with ${code}: ${out}${err}`);
  return out;
}

const FOUND: Readonly<Record<string, readonly RegExp[]>> = {
  '../clients/typescript/README.md': [
    /^Rowan Ashdown,2000000010,.*@/m,
    /^Casimir Thorne,2000000044,.*not_found/m,
  ],
  'lifecycle.md': [/^\{"data":.*"result":"lookup"/, /\{"batch":.*"status":"completed"/],
  'index.md': [
    /"status":"completed"/,
    /"email":"[^"]+@/,
    /"custom_data":\{"order": 17\}/,
    /"balance":\d+/,
  ],
};

const shells = Map.groupBy(
  examples().filter(({ language }) => language === 'sh'),
  ({ page }) => page,
);
for (const [page, blocks] of shells) {
  test(`the shell commands on ${page} work when pasted`, async (t) => {
    const script = filledIn(blocks.map(({ text }) => text).join('\n'));
    const args = ['-euo', 'pipefail', '-c', script];
    const out = await run('bash', args, temporaryFolder(t.teardown));
    for (const pattern of FOUND[page] ?? []) t.regex(out, pattern);
    t.true(
      (FOUND[page] ?? []).length > 0,
      `say in this test what the lines of ${page} print`,
    );
  });
}

for (const [file, prints] of [
  [
    'enrich.py',
    /^2000000010 completed \S+@\S+\n2000000044 not_found None\n\d credits\n$/,
  ],
  ['operations.py', /^(bat_\S+ \d+\n)*\d+\n$/],
  [
    'enrich_async.py',
    /^2000000010 completed \S+@\S+\n2000000044 not_found None\n(bat_\S+ \d+\n)+$/,
  ],
] as const) {
  (python ? test : test.skip)(
    `the program ${file} from the documentation works when pasted`,
    async (t) => {
      await writeFile(join(folder, file), program(file));
      t.regex(await run(python ?? '', [file], folder), prints);
    },
  );
}

const QUICK_START = /^2000000010 completed \S+@\S+\n2000000028 completed \S+@\S+\n$/;
for (const name of readPackages().keys()) {
  const isPython = name.endsWith('.whl');
  const maybe = isPython && !python ? test.skip : test;
  maybe(`the quick start works when pasted, with ${name}`, async (t) => {
    const place = temporaryFolder(t.teardown);
    const file = isPython ? 'quick_start.py' : 'quick-start.mts';
    await writeFile(join(place, file), program(file));
    if (isPython) {
      await installPackage(python ?? '', stack.baseUrl, place, name);
      t.regex(await run(python ?? '', [file], place), QUICK_START);
    } else {
      await installClient(place, stack.baseUrl, name);
      t.regex(await run(process.execPath, [file], place), QUICK_START);
    }
  });
}

for (const [file, prints] of [
  [
    'enrich.mts',
    /^2000000010 completed \S+@\S+\n2000000044 not_found null\n\d credits\n$/,
  ],
  ['operations.mts', /^completed \S+@\S+\n(\w+ \d+\n)*charge 1\n/],
  ['assistant.mts', /^completed \d \[\n[\s\S]*npi: '2000000028'[\s\S]*email: '\S+@/],
] as const) {
  test(`the program ${file} from the documentation works when pasted`, async (t) => {
    await writeFile(join(folder, file), program(file));
    t.regex(await run(process.execPath, [file], folder), prints);
  });
}

import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { loadConfig } from '../../../deploy/config/config.ts';
import { endWithThisProcess } from '../../support/programs.ts';

// What the commands of the local stack have in common, and what the simulator prints.

const MAIN = (name: string) => fileURLToPath(new URL(`../../../deploy/local/${name}.ts`, import.meta.url));

for (const name of ['start', 'simulator', 'listen', 'check-signature']) {
  test(`${name} --help says how to call it, what it does and how it ends`, async (t) => {
    const { code, stdout, stderr } = await ended(name, ['--help']);
    t.deepEqual([code, stderr], [0, '']);
    t.regex(stdout, /^Usage: (npm|node) .*\n\n[A-Z].*\.\n\nOptions:\n/);
    t.regex(stdout, /^Exit codes: 0 .* 1 .* 2 wrong usage/m);
    t.deepEqual(
      stdout.split('\n').filter((line) => line.length > 120),
      [],
    );
  });

  test(`${name}: an option that does not exist, or one argument too many, is exit code 2`, async (t) => {
    for (const args of [['--frobnicate'], ['whsec_AAAA']]) {
      const { code, stderr } = await ended(name, args);
      t.is(code, 2, stderr);
      t.regex(stderr, /^error: .*\nAdd --help to see how it is used\.\n$/);
      t.false(stderr.includes('AAAA'));
    }
  });
}

for (const [name, option, value] of [
  ['simulator', '--port', '70000'],
  ['simulator', '--dns-port', 'x'],
] as const) {
  test(`${name}: ${option} ${value} is exit code 2`, async (t) => {
    const { code, stderr } = await ended(name, [`${option}=${value}`]);
    t.is(code, 2, stderr);
    t.regex(stderr, new RegExp(`^error: .*${option} .*\nAdd --help to see how it is used\\.\n$`));
  });
}

test('what the simulator prints is what the worker reads', async (t) => {
  const child = spawn(process.execPath, [MAIN('simulator'), '--port', '0', '--dns-port', '0'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  endWithThisProcess(child);
  t.teardown(() => child.kill('SIGKILL'));
  const printed: Record<string, string> = {};
  for await (const line of createInterface({ input: child.stdout })) {
    const [, name = '', value = ''] = /^([A-Z_]+)=(.*)$/.exec(line) ?? [];
    if (name !== '') printed[name] = value;
    if (line.includes('Ctrl-C')) break;
  }
  const keys = Object.keys(printed).map((name) => [name.replace(/_URL$/, '_API_KEY'), 'simulator']);
  const { access, registryUrl, dnsServers } = loadConfig({
    ...Object.fromEntries(keys),
    ...printed,
    DATABASE_URL: 'postgres://user@host/name',
  });
  const read = Object.values(access).map((one) => one?.baseUrl);
  // Hunter's verifier has the URL of the vendor.
  t.deepEqual([...new Set([...read, registryUrl, ...dnsServers])].sort(), Object.values(printed).sort());
  t.is(Object.keys(printed).length, 7);
  child.kill('SIGINT');
  t.deepEqual(await once(child, 'close'), [0, null]);
});

function ended(
  name: string,
  args: readonly string[],
): Promise<{ code: number; stdout: string; stderr: string }> {
  return new Promise((resolve) => {
    execFile(process.execPath, [MAIN(name), ...args], (error, stdout, stderr) =>
      resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr }),
    );
  });
}

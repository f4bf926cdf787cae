import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import test from 'ava';

// Behavior that all commands of the local stack share.

const MAIN = (name: string) =>
  fileURLToPath(new URL(`../../../deploy/local/${name}.ts`, import.meta.url));

for (const name of ['start', 'listen', 'check-signature']) {
  test(`${name} --help shows the usage, the purpose and the exit codes`, async (t) => {
    const { code, stdout, stderr } = await ended(name, ['--help']);
    t.deepEqual([code, stderr], [0, '']);
    t.regex(stdout, /^Usage: (npm|node) .*\n\n[A-Z].*\.\n\nOptions:\n/);
    t.regex(stdout, /^Exit codes: 0 .* 1 .* 2 wrong usage/m);
    t.deepEqual(
      stdout.split('\n').filter((line) => line.length > 120),
      [],
    );
  });

  test(`${name} exits with 2 for an unknown option or too many arguments`, async (t) => {
    for (const args of [['--frobnicate'], ['whsec_AAAA']]) {
      const { code, stderr } = await ended(name, args);
      t.is(code, 2, stderr);
      t.regex(stderr, /^error: .*\nAdd --help to see how it is used\.\n$/);
      t.false(stderr.includes('AAAA'));
    }
  });
}

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

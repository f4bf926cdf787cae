import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import test from 'ava';

// Measures the memory that names with hostile name servers take in a worker.

const PROGRAM = new URL('../../support/names-memory.ts', import.meta.url).pathname;

for (const addresses of [6000, 60]) {
  test(`2,000 names with ${addresses} addresses each take less than 20 MB in the DNS cache`, async (t) => {
    const args = ['--expose-gc', PROGRAM, '2000', String(addresses)];
    const { stdout } = await promisify(execFile)(process.execPath, args);
    t.log(`${stdout.trim()} bytes`);
    t.true(Number(stdout) < 20_000_000);
  });
}

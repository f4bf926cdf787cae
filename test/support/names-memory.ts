import { Resolver } from 'node:dns/promises';
import { createNames } from '../../activities/http/names.ts';

// Run with --expose-gc. Looks up many names and prints the growth of the heap in bytes. The
// responses bypass the socket. c-ares takes 45 ms to read 6,000 addresses, so two thousand names
// would take minutes.

const [names = 0, addresses = 0] = process.argv.slice(2).map(Number);

function reply(count: number, address: (n: number) => string) {
  return Array.from({ length: count }, (_, n) => ({ address: address(n), ttl: 3600 }));
}

Object.assign(Resolver.prototype, {
  resolve4: async () => reply((addresses * 2) / 3, (n) => `198.41.${n >> 8}.${n & 255}`),
  resolve6: async () => reply(addresses / 3, (n) => `2001:503:ba3e::2:${n.toString(16)}`),
});
const { find } = createNames(['127.0.0.1:53']);

async function findAll(count: number, domain: string): Promise<void> {
  for (let n = 0; n < count; n += 1) await find(`name${n}.${domain}`).catch(() => {});
}

function heapBytes(): number {
  globalThis.gc?.();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

// The first lookups compile the code for the others.
await findAll(100, 'first.example');
const before = heapBytes();
await findAll(names, 'hostile.example');
console.log(heapBytes() - before);
// Keeps the memory in use until it is measured.
await find('localhost');

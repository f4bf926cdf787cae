import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Names the servers that `npm run servers` keeps running. Test runs in the same folder read it. */
const FILE = fileURLToPath(new URL('../../.local/test-servers.json', import.meta.url));
const NAMES = [
  'TEST_DATABASE_URL',
  'TEST_TEMPORAL_ADDRESS',
  'TEST_TEMPORAL_CLI',
] as const;

/**
 * Saves the addresses of the servers in the environment of this process.
 * @returns a function that removes the file
 */
export function announceServers(): () => void {
  mkdirSync(dirname(FILE), { recursive: true });
  const servers = Object.fromEntries(NAMES.map((name) => [name, process.env[name]]));
  writeFileSync(FILE, JSON.stringify({ pid: process.pid, servers }));
  return () => rmSync(FILE, { force: true });
}

/**
 * Puts the kept servers into the environment, unless it names servers already.
 * @returns true if it did
 */
export function useKeptServers(): boolean {
  if (process.env.TEST_DATABASE_URL !== undefined) return false;
  const kept = readKept();
  if (kept === null) return false;
  Object.assign(process.env, kept.servers);
  return true;
}

/** Returns null if there is no file, or if the process that wrote it has ended. */
function readKept(): {
  readonly pid: number;
  readonly servers: Record<string, string>;
} | null {
  try {
    const kept = JSON.parse(readFileSync(FILE, 'utf8'));
    process.kill(kept.pid, 0);
    return kept;
  } catch {
    return null;
  }
}

import { readFileSync } from 'node:fs';
import { rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

/** The addresses of the local stack's receivers, to which it may send webhooks. */
export const LOCAL_RECEIVERS = '127.0.0.0/8';

/** The content of `.local/stack.json`. Scripts, other commands, and the next start read it. */
export interface StackFacts {
  readonly base_url: string;
  readonly api_key: string;
  readonly test_api_key: string;
  readonly temporal_address: string;
  readonly temporal_namespace: string;
  readonly temporal_ui: string | null;
  readonly database_url: string;
  /** The value of `SECRETS_KEY`. */
  readonly secrets_key: string;
  readonly simulator_url: string;
  readonly receiver_url: string;
  /** The webhook secrets of the organization and of its sandbox. */
  readonly webhook_secrets: readonly string[];
  readonly organization_id: string;
  /** The ports of the stack's own servers, by the name of the server. */
  readonly ports: Readonly<Record<string, number>>;
}

/** Reads `stack.json` in a folder. Returns null if the stack was never started there. */
export function readFacts(dir: string): StackFacts | null {
  try {
    return JSON.parse(readFileSync(join(dir, 'stack.json'), 'utf8')) as StackFacts;
  } catch {
    return null;
  }
}

/**
 * Writes `stack.json`. The content is first written to a file with another name, which is then
 * renamed, so that other processes never read an incomplete file or one with the wrong permissions.
 */
export async function writeFacts(dir: string, facts: StackFacts): Promise<void> {
  const unfinished = join(dir, `stack.json.${process.pid}`);
  await writeFile(unfinished, `${JSON.stringify(facts, null, 2)}\n`, { mode: 0o600 });
  await rename(unfinished, join(dir, 'stack.json'));
}

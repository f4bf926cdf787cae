import { createHash, randomUUID } from 'node:crypto';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { EnrichmentError } from './http.ts';

/** The state of a run that survives a kill. It contains neither the key nor a result. */
interface Saved {
  readonly format: 1;
  readonly url: string;
  readonly type: string;
  /** SHA-256 of the NPIs in the order in which they are split into chunks. */
  readonly npis: string;
  /**
   * Prefix of the Idempotency-Keys: chunk N has `RUN-N`. This way, all keys are on disk before the
   * first is sent.
   */
  readonly run: string;
  readonly began: string;
  /**
   * Batch ids by chunk; null before the submit, empty while it is unknown whether the submit was
   * accepted.
   */
  readonly batches: (string | null)[];
}

export type State = ReturnType<typeof openState>;

/** NPIs in one submit, which is a chunk of a run. */
export const BATCH = 60;
const REPLAY_MS = 30 * 86_400_000;

/**
 * Reads the state of a run from its file, or creates a new one, which the caller saves before the
 * first submit. Without a file, the state ends with the process.
 *
 * A chunk whose response was lost is submitted again with its key. Within 24 hours, that is the
 * same batch. Later it is a new batch, but nothing is charged twice: emails found before are
 * replays, and NPIs without an email cost nothing. This holds for 30 days, and after that we
 * refuse. A chunk that was never sent can be submitted at any time.
 * @throws {EnrichmentError} `state_unreadable`, `state_mismatch`, `state_expired`
 */
export function openState(
  file: string | undefined,
  url: string,
  type: string,
  npis: readonly string[],
) {
  const hash = createHash('sha256').update(npis.join('\n')).digest('hex');
  const fresh: Saved = {
    format: 1,
    url,
    type,
    npis: hash,
    run: randomUUID(),
    began: new Date().toISOString(),
    batches: Array<null>(Math.ceil(npis.length / BATCH)).fill(null),
  };
  const saved = (file && read(file)) || fresh;
  const changed = (['url', 'type', 'npis'] as const).filter((name) => saved[name] !== fresh[name]);
  if (changed.length > 0) {
    const text = `${file} is of a run with other ${changed.join(' and ')}. Continue with those, or delete the file.`;
    throw new EnrichmentError('state_mismatch', text);
  }
  if (saved.batches.includes('') && Date.now() - Date.parse(saved.began) > REPLAY_MS) {
    const text = `${file} is of ${saved.began}, and the results of some batches are unknown. After 30 days emails are charged again. Delete the file to start again.`;
    throw new EnrichmentError('state_expired', text);
  }
  /** Saves the changes, either all or nothing, and returns when they are on disk. */
  const save = () => {
    if (!file) return;
    writeFileSync(`${file}.new`, `${JSON.stringify(saved, null, 1)}\n`, {
      mode: 0o600,
      flush: true,
    });
    renameSync(`${file}.new`, file);
  };
  const note = (index: number, batchId: string | null) => {
    saved.batches[index] = batchId;
    save();
  };
  return { saved, save, note };
}

function read(file: string): Saved | null {
  try {
    const saved = JSON.parse(readFileSync(file, 'utf8')) as Saved;
    if (saved.format === 1) return saved;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    if (!(error instanceof SyntaxError)) throw error;
  }
  throw new EnrichmentError('state_unreadable', `${file} is not a state file of this version.`);
}

/**
 * Locks a state until the lock is disposed of or the process dies. SQLite provides the lock that
 * the platform does not offer. Two runs would not be charged twice, because they would send the
 * same Idempotency-Keys. The lock protects their result.
 * @throws {EnrichmentError} `state_locked`
 */
export async function lockState(file: string | undefined): Promise<AsyncDisposable> {
  if (!file) return { [Symbol.asyncDispose]: async () => {} };
  const { DatabaseSync } = await import('node:sqlite');
  const lock = new DatabaseSync(`${file}.lock`);
  try {
    lock.exec('begin exclusive');
  } catch (cause) {
    throw new EnrichmentError(
      'state_locked',
      `Another run uses ${file}. Wait for it, or use another file.`,
      { cause },
    );
  }
  return {
    async [Symbol.asyncDispose]() {
      lock.close();
      await rm(`${file}.lock`, { force: true });
    },
  };
}

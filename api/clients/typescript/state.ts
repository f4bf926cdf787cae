import { hash, randomUUID } from 'node:crypto';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { EnrichmentError } from './errors.ts';
import pacing from './pacing.json' with { type: 'json' };
import type { BulkSubmit } from './types.ts';

/**
 * The content of the state file, from which a killed run resumes. It contains neither the API key
 * nor any result.
 */
interface Saved {
  readonly format: 2;
  readonly url: string;
  readonly type: string;
  /** SHA-256 of the webhook, of the custom data, and of the NPIs in their order. */
  readonly webhook: string;
  readonly customData: string;
  readonly npis: string;
  /**
   * Random id of the run. The Idempotency-Key of a part is this id, a hyphen, and `first`. The id is
   * saved before the first submit, so a resumed run sends the same keys.
   */
  readonly run: string;
  readonly began: string;
  /** All parts, in the order of their NPIs. */
  readonly parts: Part[];
}

/** Consecutive NPIs that are submitted as one batch. */
export interface Part {
  /** Position of the first NPI. */
  readonly first: number;
  readonly size: number;
  /**
   * The id of the batch. It is null before the submit, and empty while we do not know whether the
   * submit was accepted.
   */
  batchId: string | null;
}

export type State = ReturnType<typeof openState>;

/** Maximum number of NPIs in a batch. */
const BATCH = pacing.npisPerBatch;
const REPLAY_MS = 30 * 86_400_000;

/**
 * Reads the state of a run from its file. If the file does not exist, creates a new state, which
 * the caller must save before the first submit. If no file is given, the state is lost when the
 * process ends.
 *
 * A part whose response was lost is submitted again with the same Idempotency-Key. Within 24
 * hours, the service returns the same batch. Later, it creates a new batch, but charges nothing
 * twice: emails that were already found are free replays for 30 days, and NPIs without an email
 * cost nothing. After 30 days, this function throws `state_expired`. A part that was never
 * submitted can be submitted at any time.
 * @throws {EnrichmentError} `state_unreadable`, `state_mismatch`, `state_expired`
 */
export function openState(
  file: string | undefined,
  url: string,
  npis: readonly string[],
  fields: Required<Omit<BulkSubmit, 'npis'>>,
) {
  const fresh: Saved = {
    format: 2,
    url,
    type: fields.enrichment_email_type ?? 'any',
    webhook: digest(fields.webhook),
    customData: digest(fields.custom_data),
    npis: digest(npis),
    run: randomUUID(),
    began: new Date().toISOString(),
    parts: partsOf(npis.length),
  };
  const saved = (file && read(file)) || fresh;
  const changed = (['url', 'type', 'webhook', 'customData', 'npis'] as const).filter(
    (name) => saved[name] !== fresh[name],
  );
  if (changed.length > 0) {
    const text = `${file} belongs to a run with other values of ${changed.join(' and ')}. Use those again, or delete the file.`;
    throw new EnrichmentError('state_mismatch', text);
  }
  const isUnknown = saved.parts.some(({ batchId }) => batchId === '');
  if (isUnknown && Date.now() - Date.parse(saved.began) > REPLAY_MS) {
    const text = `${file} is from ${saved.began}, and the results of some batches are unknown. After 30 days, emails are charged again. Delete the file to start again.`;
    throw new EnrichmentError('state_expired', text);
  }
  /** Writes the whole state to disk. A crash leaves either the old file or the new file. */
  const save = () => {
    if (!file) return;
    writeFileSync(`${file}.new`, `${JSON.stringify(saved, null, 1)}\n`, {
      mode: 0o600,
      flush: true,
    });
    renameSync(`${file}.new`, file);
  };
  return { saved, save };
}

function partsOf(total: number): Part[] {
  return Array.from({ length: Math.ceil(total / BATCH) }, (_, index) => {
    const first = index * BATCH;
    return { first, size: Math.min(BATCH, total - first), batchId: null };
  });
}

function digest(value: unknown): string {
  return hash('sha256', JSON.stringify(value));
}

function read(file: string): Saved | null {
  try {
    const saved = JSON.parse(readFileSync(file, 'utf8')) as Saved;
    if (saved.format === 2) return saved;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') {
      return null;
    }
    if (!(error instanceof SyntaxError)) throw error;
  }
  throw new EnrichmentError(
    'state_unreadable',
    `${file} is not a state file of this version.`,
  );
}

/**
 * Locks a state file until the lock is disposed of or the process dies. Node.js has no file locks,
 * so the lock is an SQLite transaction. Without the lock, two runs with the same state file would
 * not be charged twice, because both send the same Idempotency-Keys. But they would overwrite each
 * other's result file.
 * @throws {EnrichmentError} `state_locked`
 */
export async function lockState(file: string | undefined): Promise<AsyncDisposable> {
  if (!file) {
    return { [Symbol.asyncDispose]: async () => {} };
  }
  const { DatabaseSync } = loadSqlite();
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

/**
 * Loads SQLite without the warning of Node.js 22 that it is experimental. Loading is synchronous, so
 * no other warning is lost.
 */
function loadSqlite() {
  const { emitWarning } = process;
  process.emitWarning = () => {};
  try {
    return process.getBuiltinModule('node:sqlite');
  } finally {
    process.emitWarning = emitWarning;
  }
}

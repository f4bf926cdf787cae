import type { Database } from '../../db/connection/client.ts';
import { measurePace } from '../../db/requests/batches.ts';

const MINUTE = 60_000;
/** The pace is measured over this time, so that it follows a stall and the time after it. */
const WINDOW_MS = 10 * MINUTE;
/** With fewer results, or after less time, the pace is not known. */
const MIN_RESULTS = 10;
const MIN_MS = MINUTE;

/** The part of a list that is not final. */
export interface Rest {
  /** The batches that are submitted. */
  readonly batchIds: readonly string[];
  /** The number of NPIs that are not final. */
  readonly left: number;
  /** True if NPIs are left to submit. Otherwise the last deadline of the batches is the latest end. */
  readonly isSubmitting: boolean;
}

/** Returns the remaining time in words, from the measured pace. It is empty if it isn't known. */
export async function remainingTime(db: Database, rest: Rest): Promise<string> {
  const pace = await measurePace(db, rest.batchIds, WINDOW_MS);
  const { recent, overMs, boundMs } = pace;
  if (recent < MIN_RESULTS || overMs < MIN_MS) return '';
  const measured = (rest.left * overMs) / recent;
  if (rest.isSubmitting) return inWords(measured);
  return boundMs > 0 ? inWords(Math.min(measured, boundMs)) : '';
}

function inWords(ms: number): string {
  const minutes = Math.round(ms / MINUTE);
  if (minutes <= 1) return 'About a minute left.';
  if (minutes < 10) return `About ${minutes} minutes left.`;
  const fives = Math.round(minutes / 5) * 5;
  if (fives < 60) return `About ${fives} minutes left.`;
  const hours = Math.round(minutes / 60);
  if (hours === 1) return 'About an hour left.';
  return hours < 24 ? `About ${hours} hours left.` : 'More than a day left.';
}

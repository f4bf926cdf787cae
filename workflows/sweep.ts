import type { SweepResult } from './messages.ts';
import { sweepOnce } from './options.ts';

/** Run by a Schedule: starts what was committed but never started, settles what can no longer finish. */
export async function sweep(): Promise<SweepResult> {
  return await sweepOnce();
}

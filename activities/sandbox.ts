import { Context } from '@temporalio/activity';
import type { Database } from '../db/connection/client.ts';
import { hasNpiCheckDigit } from '../db/providers/npi.ts';
import { beginForSandbox } from '../db/requests/sandbox.ts';
import type { TestOutcome } from '../db/words.ts';
import type { LookupPlan, VendorResult } from '../workflows/messages.ts';
import { retryLater } from './failures.ts';
import MAGIC from './magic-npis.json' with { type: 'json' };

// This file produces the results of sandbox requests, which call no vendor or registry and do not
// use the directory (api/docs/sandbox.md, Sandbox).

const OUTCOMES = new Map(MAGIC.map(({ npi, outcome }) => [npi, outcome as TestOutcome]));

/**
 * Returns the outcome of an NPI in a sandbox. Magic NPIs have the outcome that magic-npis.json
 * lists. The outcome of any other NPI depends on its digits, so a list of NPIs has results of each
 * kind.
 */
export function testOutcomeOf(npi: string): TestOutcome {
  const magic = OUTCOMES.get(npi);
  if (magic) return magic;
  if (!hasNpiCheckDigit(npi)) return 'not_found';
  const lastBeforeCheckDigit = npi[8];
  switch (lastBeforeCheckDigit) {
    case '0':
      return 'not_found';
    case '1':
    case '2':
      return 'personal';
    default:
      return 'professional';
  }
}

/**
 * The prefix of a sandbox source. No vendor id starts with it, because it contains a space. The
 * outcome follows the prefix, so the Temporal UI shows it.
 */
const SANDBOX = 'the sandbox: ';
const GREYLIST_MS = 3000;
const SLOW_MS = 5000;
const DEADLINE_POLL_MS = 1000;
const CAP_MS = 60_000;

/**
 * Returns a plan for a sandbox request, with the sandbox as its only source. Returns null if the
 * request is already final.
 */
export async function planForSandbox(
  db: Database,
  { requestId }: { readonly requestId: string },
): Promise<LookupPlan | null> {
  const begun = await beginForSandbox(db, requestId);
  if (begun === null) return null;
  const source = `${SANDBOX}${begun.outcome}`;
  return {
    kind: 'ask',
    lookupId: source,
    requestedType: begun.requestedType,
    greylistMs: GREYLIST_MS,
    unidentified: null,
    sources: [{ vendor: source, capMs: CAP_MS }],
  };
}

const FOUND = { kind: 'found', reason: null } as const;
/** The last response that the sandbox source returns for each outcome. */
const RESULTS: Readonly<Record<Exclude<TestOutcome, 'deadline'>, VendorResult>> = {
  professional: FOUND,
  personal: FOUND,
  found: FOUND,
  stored: FOUND,
  replayed: FOUND,
  slow: FOUND,
  greylisted: FOUND,
  failed: { kind: 'fatal', reason: 'test_outcome' },
  not_found: { kind: 'miss', reason: 'no_source' },
};

/**
 * Returns a sandbox response in place of a vendor and our checks. The address itself is made up
 * when the request is settled (`findSandboxEmails`).
 * @param name the name of a source in the plan, or the lookup id of the plan. Both are the same
 * text.
 * @returns null if `name` is not a sandbox source
 * @throws {ApplicationFailure} retryable, if the outcome takes longer
 */
export function resultForSandbox(
  name: string,
  patience: 'first' | 'early' | 'over',
): VendorResult | null {
  if (!name.startsWith(SANDBOX)) return null;
  const outcome = name.slice(SANDBOX.length) as TestOutcome;
  // The activity is retried until the lookup has no time left.
  if (outcome === 'deadline') {
    throw retryLater('sandbox', 'pending', DEADLINE_POLL_MS);
  }
  if (outcome === 'slow' && Context.current().info.attempt === 1) {
    throw retryLater('sandbox', 'pending', SLOW_MS);
  }
  if (outcome === 'greylisted' && patience === 'first') {
    return { kind: 'later', reason: outcome };
  }
  return RESULTS[outcome];
}

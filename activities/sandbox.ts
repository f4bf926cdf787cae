import { Context } from '@temporalio/activity';
import type { Database } from '../db/client.ts';
import { beginForSandbox } from '../db/requests/sandbox.ts';
import type { TestOutcome } from '../db/words.ts';
import type { LookupPlan, VendorAnswer } from '../workflows/messages.ts';
import { retryLater } from './failures.ts';
import MAGIC from './magic-npis.json' with { type: 'json' };
import { hasNpiCheckDigit } from './person/npi.ts';

// Who answers requests of sandboxes (api/docs/sandbox.md, Sandbox), in place of vendors, directory
// and registry.

const OUTCOMES = new Map(MAGIC.map(({ npi, outcome }) => [npi, outcome as TestOutcome]));

/**
 * What an NPI comes to in a sandbox: the magic ones as their table has it, all others by their
 * digits, so that a list of NPIs has some of each kind.
 */
export function testOutcomeOf(npi: string): TestOutcome {
  const magic = OUTCOMES.get(npi);
  if (magic) return magic;
  // The last digit before the check digit.
  if (!hasNpiCheckDigit(npi) || npi[8] === '0') return 'not_found';
  return npi[8] === '1' || npi[8] === '2' ? 'personal' : 'professional';
}

/** No vendor's id begins so: it has a blank. The outcome comes after it, for operators to see. */
const SANDBOX = 'the sandbox: ';
const [GREYLIST_MS, SLOW_MS, DEADLINE_POLL_MS, CAP_MS] = [3000, 5000, 1000, 60_000];

/**
 * Decides how a request of a sandbox is looked up: as any other, with one source. Null if it is
 * final already.
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
    wantedType: begun.wantedType,
    greylistMs: GREYLIST_MS,
    unidentified: null,
    sources: [{ vendor: source, capMs: CAP_MS }],
  };
}

const FOUND = { kind: 'found', reason: null } as const;
/** What it says in the end. */
const ANSWERS: Readonly<Record<Exclude<TestOutcome, 'deadline'>, VendorAnswer>> = {
  ...{ professional: FOUND, personal: FOUND, found: FOUND, stored: FOUND, replayed: FOUND },
  ...{ slow: FOUND, greylisted: FOUND },
  failed: { kind: 'fatal', reason: 'test_outcome' },
  not_found: { kind: 'miss', reason: 'no_source' },
};

/**
 * Answers for a sandbox, as a vendor and our checks of what it names would. The address itself is
 * made up when the request is settled (`sandboxEmails`).
 * @param name of a planned source, or of its lookup
 * @returns null if that is no sandbox
 * @throws {ApplicationFailure} retryable, if it is to take longer
 */
export function answerForSandbox(
  name: string,
  patience: 'first' | 'early' | 'over',
): VendorAnswer | null {
  if (!name.startsWith(SANDBOX)) return null;
  const outcome = name.slice(SANDBOX.length) as TestOutcome;
  // Until there is no more time for another attempt.
  if (outcome === 'deadline') throw retryLater('sandbox', 'pending', DEADLINE_POLL_MS);
  if (outcome === 'slow' && Context.current().info.attempt === 1) {
    throw retryLater('sandbox', 'pending', SLOW_MS);
  }
  if (outcome === 'greylisted' && patience === 'first') return { kind: 'later', reason: outcome };
  return ANSWERS[outcome];
}

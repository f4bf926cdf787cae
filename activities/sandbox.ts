import type { Database } from '../db/client.ts';
import { beginForSandbox, readTestOutcome } from '../db/requests/sandbox.ts';
import type { TestOutcome } from '../db/words.ts';
import type { Planned, VendorAnswer } from '../workflows/messages.ts';
import { retryLater } from './failures.ts';
import MAGIC from './magic-npis.json' with { type: 'json' };
import { hasNpiCheckDigit } from './person/npi.ts';

// Who answers requests of sandboxes (api/README.md, Sandbox), in place of vendors, directory and registry.

/** What a plan calls it, as its one source and as its lookup: no vendor's id, because it has a blank. */
export const SANDBOX = 'the sandbox';

const SLOW_MS = 5000;
const GREYLIST_MS = 3000;
/** Longer than any test takes. */
const CAP_MS = 60_000;
const DEADLINE_POLL_MS = 500;

const OUTCOMES = new Map(MAGIC.map(({ npi, outcome }) => [npi, outcome as TestOutcome]));

/**
 * What an NPI comes to in a sandbox: the magic ones as their table has it, all others by their digits, so that a list of
 * NPIs has some of each kind.
 */
export function testOutcomeOf(npi: string): TestOutcome {
  const magic = OUTCOMES.get(npi);
  if (magic) return magic;
  // The last digit before the check digit.
  if (!hasNpiCheckDigit(npi) || npi[8] === '0') return 'not_found';
  return npi[8] === '1' || npi[8] === '2' ? 'personal' : 'professional';
}

/** Decides how requests of a sandbox are looked up: as any others, with one source. */
export async function planForSandbox(
  db: Database,
  requests: readonly { readonly requestId: string }[],
): Promise<Planned[]> {
  const begun = await beginForSandbox(
    db,
    requests.map(({ requestId }) => requestId),
  );
  return begun.map(({ wantedType, ...request }) => ({
    ...request,
    plan: {
      kind: 'ask',
      lookupId: SANDBOX,
      wantedType,
      greylistMs: GREYLIST_MS,
      unidentified: null,
      sources: [{ vendor: SANDBOX, capMs: CAP_MS }],
    },
  }));
}

/**
 * Answers a request of a sandbox, as a vendor and our checks of what it names would. The address itself is made up when
 * the request is settled (`sandboxEmails`).
 * @param patience `first`, unless a mail server has asked to come back
 * @throws {ApplicationFailure} retryable, if it is to take longer
 */
export async function answerForSandbox(
  db: Database,
  { requestId }: { readonly requestId: string },
  patience: 'first' | 'early' | 'over',
): Promise<VendorAnswer> {
  const { outcome, ageMs } = await readTestOutcome(db, requestId);
  switch (outcome) {
    case 'greylisted':
      return patience === 'first' ? { kind: 'later', reason: 'greylisted' } : { kind: 'found', reason: null };
    case 'slow':
      if (ageMs < SLOW_MS) throw retryLater(SANDBOX, 'pending', SLOW_MS - ageMs);
      return { kind: 'found', reason: null };
    case 'deadline':
      throw retryLater(SANDBOX, 'pending', DEADLINE_POLL_MS);
    case 'failed':
      return { kind: 'fatal', reason: 'test_outcome' };
    case 'not_found':
      return { kind: 'miss', reason: 'no_source' };
    case 'professional':
    case 'personal':
    case 'found':
    case 'stored':
    case 'replayed':
      return { kind: 'found', reason: null };
    default:
      return outcome satisfies never;
  }
}

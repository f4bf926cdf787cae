import type { Lifecycle } from '@hapi/hapi';
import { PRICES } from '../../db/accounts/credits.ts';
import { isSandbox } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import { hasNpiCheckDigit } from '../../db/providers/npi.ts';
import {
  type PublicFacts,
  readPaidTypes,
  readPublicFacts,
} from '../../db/requests/check.ts';
import {
  CHECK_RESULTS,
  type CheckResult,
  EMAIL_TYPES,
  REQUESTED_TYPES,
  type RequestedType,
} from '../../db/words.ts';
import { readBody, validBody } from '../http/json-body.ts';
import { readInTurn } from '../http/turn-queue.ts';
import { checkBody } from '../http/validation.ts';
import type { SubmitDeps } from './submit.ts';

export type CheckDeps = Pick<SubmitDeps, 'db' | 'rules' | 'testOutcomeOf'>;

/** Returns the handler of the free check (api/docs/lifecycle.md, Checking before you spend). */
export function checkHandlers(deps: CheckDeps) {
  return {
    checkNpis: async (request) => {
      const bytes = await readBody(request.raw.req);
      // The place is for one submit, and a check only reads.
      request.app.place.leave();
      return await readInTurn(request, async (organizationId) => {
        const { npis } = validBody(request, bytes, checkBody);
        return await checkNpis(deps, organizationId, npis);
      });
    },
  } satisfies Record<string, Lifecycle.Method>;
}

/** The result for one entry of the list. */
interface Checked extends Pick<PublicFacts, 'name' | 'city' | 'state'> {
  readonly npi: string;
  readonly result: CheckResult;
  /** The requested types for which a submit is a free repeat. */
  readonly free_types: readonly RequestedType[];
}

/**
 * Checks texts that should be NPIs, without a submit.
 * @param npis at most `MAX_CHECKED` texts. The same text may occur more than once
 * @param aheadMs milliseconds from now within which the submit is
 */
export async function checkNpis(
  { db, rules, testOutcomeOf }: CheckDeps,
  organizationId: string,
  npis: readonly string[],
  aheadMs = 0,
) {
  const isTest = isSandbox(organizationId);
  const valid = [...new Set(npis.filter(hasNpiCheckDigit))];
  // A window that ends before a submit is final may not make it free.
  const paidMs = rules.replayMs - rules.lookupTimeoutMs - aheadMs;
  const paid = await readPaidTypes(db, organizationId, valid, paidMs);
  const known = await factsOf(db, organizationId, valid);
  const data: Checked[] = npis.map((npi) => {
    const facts = known.get(npi);
    const { name = null, city = null, state = null } = facts ?? {};
    const isRepeat = isTest && testOutcomeOf(npi) === 'replayed';
    const types = freeTypes(isRepeat ? EMAIL_TYPES : (paid.get(npi) ?? []));
    const result = resultOf(npi, facts?.refusal ?? null, types);
    const free_types = result === 'free_repeat' ? types : [];
    return { npi, result, free_types, name, city, state };
  });
  return { data, totals: totalsOf(data), max_credits: maxCredits(data) };
}

/** Reads the public facts about NPIs for an organization. A sandbox shows no real person. */
export async function factsOf(
  db: Database,
  organizationId: string,
  npis: readonly string[],
): Promise<ReadonlyMap<string, PublicFacts>> {
  return isSandbox(organizationId) ? new Map() : await readPublicFacts(db, npis);
}

/** Returns the requested types that an email of one of these types satisfies. */
function freeTypes(paid: readonly RequestedType[]): RequestedType[] {
  return REQUESTED_TYPES.filter(
    (type) => paid.includes(type) || (type === 'any' && paid.length > 0),
  );
}

function resultOf(
  npi: string,
  refusal: PublicFacts['refusal'],
  free: readonly RequestedType[],
): CheckResult {
  if (!hasNpiCheckDigit(npi)) return 'not_an_npi';
  switch (refusal) {
    case 'organization_npi':
      return 'organization';
    case 'deactivated':
      return 'deactivated';
    case null:
      return free.length > 0 ? 'free_repeat' : 'lookup';
    default:
      return refusal satisfies never;
  }
}

/** Counts the entries of each result. */
function totalsOf(data: readonly Checked[]) {
  const counts = CHECK_RESULTS.map((result) => [
    result,
    data.filter((one) => one.result === result).length,
  ]);
  return Object.fromEntries(counts) as Record<CheckResult, number>;
}

/**
 * Returns the most that the whole list can cost, by requested type. An NPI that occurs twice is
 * charged once.
 */
function maxCredits(data: readonly Checked[]) {
  const byNpi = new Map(data.map((one) => [one.npi, one]));
  const possible = [...byNpi.values()].filter(
    ({ result }) => result === 'lookup' || result === 'free_repeat',
  );
  const prices = REQUESTED_TYPES.map((type) => {
    const charged = possible.filter(({ free_types }) => !free_types.includes(type));
    return [type, charged.length * PRICES[type]];
  });
  return Object.fromEntries(prices) as Record<RequestedType, number>;
}

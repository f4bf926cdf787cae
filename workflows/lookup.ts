import { CancellationScope, isCancellation, sleep } from '@temporalio/workflow';
import type { LookupInput, LookupPlan, LookupResult, VendorAnswer } from './messages.ts';
import { asking, identifying, planLookup, refundCredits, settling, verifying } from './options.ts';
import { createStory, type Story } from './story.ts';
import { unresolvedUnless } from './unresolved.ts';

/** The longest that checks of known addresses hold up the vendors. */
const KNOWN_MS = 2 * 60_000;
/** A vendor's share of the time is for the vendor: our checks of what it names come on top. */
const VERIFY_MS = 2 * 60_000;
/** What a second look at a greylisted address and settling need at least. */
const RECHECK_MS = 5000;

type AskPlan = Extract<LookupPlan, { kind: 'ask' }>;

/** Something that may bring an email of the NPI: a vendor, or the addresses that are known already. */
interface Source {
  readonly id: string;
  /** How long it is waited for before the next one is asked. */
  readonly capMs: number;
  ask(msLeft: number, again: boolean): Promise<VendorAnswer>;
}

/**
 * Finds the email of one NPI: checks what is known, asks the vendors one by one until one answer passes our checks,
 * and settles the request once. Whatever goes wrong on the way, the compensation gives the credits back and settles
 * as `failed`.
 */
export async function lookUpEmail(input: LookupInput): Promise<LookupResult> {
  const { requestId, batchId, deadline } = input;
  const settle = (reason: string) =>
    settling(deadline - Date.now()).settleRequest({ requestId, batchId, reason });
  const compensate = (reason: string) =>
    CancellationScope.nonCancellable(() => refundCredits({ requestId, batchId, reason }));
  try {
    const { plan, identity } = await makePlan(input);
    if (plan.kind !== 'ask') return await settle(plan.kind === 'end' ? plan.reason : 'no_source');
    const answers = [...(await askAll(input, plan)), ...(plan.nameless ? identity : [])];
    const obstacle = answers.find(({ kind }) => !DEFINITIVE[kind]);
    const over = answers.some(({ kind }) => FINAL[kind]);
    if (obstacle && !over) return await compensate(obstacle.reason ?? obstacle.kind);
    const last = answers.find(({ kind }) => FINAL[kind]) ?? answers.at(-1);
    return await settle(last?.reason ?? 'no_source');
  } catch (error) {
    const result = await compensate(isCancellation(error) ? 'cancelled' : 'lookup_failed');
    if (isCancellation(error)) throw error;
    return result;
  }
}

/** After one of these nobody else is asked. */
const FINAL: Readonly<Record<VendorAnswer['kind'], boolean>> = {
  ...{ found: true, stored: true, settled: true, blocked: true },
  ...{
    miss: false,
    skip: false,
    unusable: false,
    later: false,
    fatal: false,
    lost: false,
    unresolved: false,
  },
};

/** `not_found` needs one of these from every source; anything less is `failed`. */
const DEFINITIVE: Readonly<Record<VendorAnswer['kind'], boolean>> = {
  ...{ found: true, stored: true, settled: true, blocked: true, miss: true, skip: true, unusable: true },
  ...{ later: false, fatal: false, lost: false, unresolved: false },
};

/**
 * Who the NPI is decides whom to ask. Where the registry cannot tell now, those are asked who need no name.
 * @returns with the plan, what the registry answered if it was asked
 */
async function makePlan({
  requestId,
  npi,
  deadline,
}: LookupInput): Promise<{ plan: LookupPlan; identity: VendorAnswer[] }> {
  const plan = await planLookup({ requestId, npi, identified: false });
  if (plan.kind !== 'identify') return { plan, identity: [] };
  const answer = await unresolvedUnless(() =>
    identifying(npi, deadline - Date.now()).identify({ requestId, npi }),
  );
  return { plan: await planLookup({ requestId, npi, identified: true }), identity: [answer] };
}

/**
 * Asks one source after the other until one has a usable email. Those that could not answer get another chance after
 * all the others, with what is left of the time.
 * @returns the last answer of each source that was asked
 */
async function askAll(input: LookupInput, plan: AskPlan): Promise<VendorAnswer[]> {
  const left = () => input.deadline - Date.now();
  const sources = sourcesOf(input, plan, createStory());
  const answers = new Map<string, VendorAnswer>();
  const isOver = () => [...answers.values()].some(({ kind }) => FINAL[kind]);

  for (const source of sources) {
    answers.set(source.id, await source.ask(Math.min(source.capMs, left()), false));
    if (isOver()) return [...answers.values()];
  }
  const unanswered = sources.filter(({ id }) => MAY_ANSWER_YET.has(answers.get(id)?.kind));
  for (const [index, source] of unanswered.entries()) {
    answers.set(source.id, await source.ask(Math.floor(left() / (unanswered.length - index)), true));
    if (isOver()) break;
  }
  return [...answers.values()];
}

const MAY_ANSWER_YET: ReadonlySet<VendorAnswer['kind'] | undefined> = new Set(['unresolved', 'lost']);

function sourcesOf({ requestId, npi, deadline }: LookupInput, plan: AskPlan, story: Story): Source[] {
  const { lookupId, wantedType } = plan;
  const verify = (what: string, msLeft: number, patience: 'first' | 'early' | 'over') =>
    unresolvedUnless(
      () => verifying(what, npi, msLeft).verifyEmails({ requestId, npi, lookupId, wantedType, patience }),
      msLeft,
    );
  /** A greylisted mailbox is asked again within the deadline; until then nobody else is paid for an answer. */
  const patiently = async (what: string, answer: VendorAnswer): Promise<VendorAnswer> => {
    story.tell(what, answer);
    if (answer.kind !== 'later') return answer;
    const left = () => deadline - Date.now();
    const waitMs = Math.min(plan.greylistMs, left() - RECHECK_MS);
    if (waitMs < RECHECK_MS) return { kind: 'unresolved', reason: answer.reason };
    await sleep(waitMs);
    const second = await verify(what, left(), waitMs < plan.greylistMs ? 'early' : 'over');
    story.tell(what, second);
    return second.kind === 'later' ? { kind: 'unresolved', reason: second.reason } : second;
  };
  const known = {
    id: 'known addresses',
    capMs: KNOWN_MS,
    ask: async (msLeft: number) =>
      await patiently('known addresses', await verify('known addresses', msLeft, 'first')),
  };
  const vendors = plan.vendors.map(({ id, capMs }) => ({
    id,
    capMs,
    ask: async (msLeft: number, again: boolean) => {
      const question = { requestId, npi, vendor: id, again, until: Date.now() + msLeft };
      const ask = () =>
        asking(id, npi, Math.min(msLeft + VERIFY_MS, deadline - Date.now())).askVendor(question);
      return await patiently(id, await unresolvedUnless(ask, msLeft));
    },
  }));
  return plan.known > 0 ? [known, ...vendors] : vendors;
}

import {
  ActivityFailure,
  ApplicationFailure,
  CancellationScope,
  isCancellation,
  proxyActivities,
  setCurrentDetails,
  sleep,
  upsertSearchAttributes,
} from '@temporalio/workflow';
import type { Activities } from '../activities/index.ts';
import {
  type LookupInput,
  type LookupResult,
  MEANING,
  OUTCOME,
  type PlannedSource,
  type VendorAnswer,
} from './messages.ts';
import { atOnce, onLookupsQueue, REFUND, throwBug } from './options.ts';

const settleRequest = atOnce('settleRequest');
const { refundCredits } = proxyActivities<Activities>(REFUND);

/** A vendor's share of the time is for the vendor: our checks of what it names come on top. */
const VERIFY_MS = 2 * 60_000;
/** What a last look at something and settling need. */
export const RESERVE_MS = 5000;

/**
 * Finds the email of one NPI: checks what is known, asks the vendors one by one until one answer passes our checks,
 * and settles the request once. If an activity fails or somebody cancels it, the compensation gives the credits back
 * and settles as `failed`.
 * @param show tells operators who said what
 */
export async function lookUpEmail(input: LookupInput, show = setCurrentDetails): Promise<LookupResult> {
  try {
    return named(await lookUp(input, show));
  } catch (error) {
    throwBug(error);
    const reason = isCancellation(error) ? 'cancelled' : 'lookup_failed';
    const result = named(
      await CancellationScope.nonCancellable(() => refundCredits({ ...idsOf(input), reason })),
    );
    if (isCancellation(error)) throw error;
    return result;
  }
}

async function lookUp(input: LookupInput, show: (details: string) => void): Promise<LookupResult> {
  const settle = (reason: string) => settleRequest({ ...idsOf(input), reason });
  const compensate = (reason: string) => refundCredits({ ...idsOf(input), reason });
  const answers = await askAll(input, show);
  const final = answers.find(({ kind }) => MEANING[kind] === 'final');
  if (final) return final.settled ?? (await settle(final.reason ?? 'no_source'));
  const missing = answers.find(({ kind }) => MEANING[kind] !== 'definitive');
  if (missing) return await compensate(missing.reason ?? missing.kind);
  if (input.plan.unidentified !== null) return await compensate(input.plan.unidentified);
  return await settle(answers.at(-1)?.reason ?? 'no_source');
}

function idsOf({ requestId, batchId, npi }: LookupInput) {
  return { requestId, batchId, npi };
}

/** So that operators find what brought no email, and why. */
function named(result: LookupResult): LookupResult {
  const { status, reason } = result;
  if (status !== 'completed') upsertSearchAttributes([{ key: OUTCOME, value: `${status}: ${reason}` }]);
  return result;
}

/**
 * Asks one source after the other until one has a usable email. Those that could not answer get another chance after
 * all the others, with what is left of the time.
 * @returns the last answer of each source that was asked
 */
async function askAll(input: LookupInput, show: (details: string) => void): Promise<VendorAnswer[]> {
  const { plan } = input;
  const left = () => input.deadline - Date.now();
  const answers = new Map<PlannedSource, VendorAnswer>();
  const story: string[] = [];
  const hear = (source: PlannedSource, answer: VendorAnswer) => {
    answers.set(source, answer);
    story.push(`- **${nameOf(source)}**: ${answer.kind}${answer.reason ? ` (${answer.reason})` : ''}`);
    show(story.join('\n'));
    return MEANING[answer.kind];
  };
  const askOne = async (source: PlannedSource, time: Time) => {
    const meaning = hear(source, await ask(input, source, time));
    const waitMs = Math.min(plan.greylistMs, left() - RESERVE_MS);
    if (answers.get(source)?.kind !== 'later' || waitMs <= 0) return meaning;
    // A mail server greylists what was named: nobody else is paid for an answer before the second look at it.
    await sleep(waitMs);
    const patience = waitMs < plan.greylistMs ? 'early' : 'over';
    return hear(source, await verify(input, source, { msLeft: left(), patience }));
  };

  const open: PlannedSource[] = [];
  for (const source of plan.sources) {
    const meaning = await askOne(source, { msLeft: Math.min(source.capMs, left()), again: false });
    if (meaning === 'final') return [...answers.values()];
    if (meaning === 'open') open.push(source);
  }
  for (const [index, source] of open.entries()) {
    const msLeft = Math.floor(left() / (open.length - index));
    if ((await askOne(source, { msLeft, again: true })) === 'final') break;
  }
  return [...answers.values()];
}

/** `again`: the second chance of a source that has not answered. */
type Time = Readonly<{ msLeft: number; again: boolean }>;

function nameOf({ vendor }: PlannedSource): string {
  return vendor ?? 'known addresses';
}

async function ask(
  input: LookupInput,
  source: PlannedSource,
  { msLeft, again }: Time,
): Promise<VendorAnswer> {
  const { vendor } = source;
  if (vendor === null) return await verify(input, source, { msLeft, patience: 'first' });
  const { npi, deadline } = input;
  const activityMs = Math.min(msLeft + VERIFY_MS, deadline - Date.now());
  const { askVendor } = proxyActivities<Activities>(
    onLookupsQueue(again ? `${vendor}-again` : vendor, `${vendor} for NPI ${npi}`, activityMs),
  );
  const until = Date.now() + msLeft;
  return await answerWithin(msLeft, () => askVendor({ ...idsOf(input), vendor, again, until }));
}

/** Our checks of addresses that are known already, or that no vendor is asked for again. */
async function verify(
  input: LookupInput,
  source: PlannedSource,
  { msLeft, patience }: { readonly msLeft: number; readonly patience: 'first' | 'early' | 'over' },
): Promise<VendorAnswer> {
  const { lookupId, wantedType } = input.plan;
  const { verifyEmails } = proxyActivities<Activities>(
    onLookupsQueue(
      `${source.vendor ?? 'known'}-${patience}`,
      `${nameOf(source)} of NPI ${input.npi}`,
      msLeft,
    ),
  );
  return await answerWithin(msLeft, () => verifyEmails({ ...idsOf(input), lookupId, wantedType, patience }));
}

/**
 * The answer of an activity that asks someone. Its retries are unlimited, so it fails only if no further attempt fits
 * into its time; then the last attempt's failure says why.
 */
async function answerWithin(msLeft: number, work: () => Promise<VendorAnswer>): Promise<VendorAnswer> {
  if (msLeft <= 0) return { kind: 'unresolved', reason: 'deadline' };
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof ActivityFailure) || isCancellation(error)) throw error;
    return { kind: 'unresolved', reason: reasonOf(error.cause) };
  }
}

/** The type of failures that say why a source could not be asked or could not answer yet. */
const SOURCE = 'Source.';

function reasonOf(cause: Error | undefined): string {
  // A time-out carries the last attempt's failure as its own cause.
  const failure = cause instanceof ApplicationFailure ? cause : cause?.cause;
  const type = failure instanceof ApplicationFailure ? failure.type : null;
  return type?.startsWith(SOURCE) ? type.slice(SOURCE.length) : 'deadline';
}

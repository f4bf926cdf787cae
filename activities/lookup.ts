import { createHash } from 'node:crypto';
import { Context } from '@temporalio/activity';
import type { Database } from '../db/connection/client.ts';
import { copyKnown } from '../db/lookups/candidates.ts';
import { type JoinedLookup, joinLookup } from '../db/lookups/lookups.ts';
import { admitCall, recordOne } from '../db/lookups/sources.ts';
import { CHECK_MS } from '../db/lookups/turns.ts';
import { recordSkipped, type SkippedVendor } from '../db/lookups/vendor-attempts.ts';
import { countCall } from '../db/operations/metrics.ts';
import { hasNpiCheckDigit } from '../db/providers/npi.ts';
import { isRegistryDue, storeRegistryResponse } from '../db/providers/providers.ts';
import { type ProviderFacts, readProvider } from '../db/providers/subject.ts';
import { findOpenRequest } from '../db/requests/facts.ts';
import type { LookupEnd } from '../db/requests/settle.ts';
import { PATTERN_SOURCE, type Reason, type RequestedType } from '../db/words.ts';
import type { LookupPlan, PlannedSource } from '../workflows/messages.ts';
import type { ActivityDeps, VendorSource } from './deps.ts';
import { logBreaker, outcomeOf, retryLater } from './failures.ts';
import { type Clock, withHeartbeat } from './heartbeat.ts';
import { wordOf } from './http/client.ts';
import { REGISTRY_LIMITS } from './person/registry.ts';
import {
  addPatterns,
  buildSubject,
  endpointCandidates,
  readSubject,
} from './person/subject.ts';
import { planForSandbox } from './sandbox.ts';
import { type RequestIds, type SettleDeps, settleAndSignal } from './settle.ts';
import { waitForSlot } from './slots.ts';
import { employerKind } from './spending.ts';
import { personalHalvesLast } from './vendors/halves.ts';
import { missingOf, type Subject } from './vendors/vendor.ts';

export type LookupDeps = SettleDeps &
  Pick<ActivityDeps, 'vendors' | 'verifiers' | 'registry' | 'spending'> & {
    readonly subjects: Subjects;
  };

export const REGISTRY = 'registry';
/**
 * The longest time that a lookup checks known addresses before it calls its first vendor. If the
 * worker is killed, the turn must first end, and a check then still has a minute.
 */
const KNOWN_MS = CHECK_MS + 60_000;

/**
 * The reason for skipping a vendor that recently found nothing for this NPI. If all vendors are
 * skipped, the request may end with this reason.
 */
const KNOWN_MISS = 'known_miss';

type ToPlan = RequestIds & {
  /**
   * Null if the NPI Registry was not asked yet. Once it was asked, `trouble` is the reason why it
   * did not respond, or null if its response is stored.
   */
  readonly registry: { readonly trouble: string | null } | null;
};

/** Returns the activities that start a lookup. All are safe to repeat. */
export function createLookupActivities(deps: LookupDeps) {
  return {
    /**
     * Decides which sources to ask for a request, and adds the request to the open lookup of its
     * NPI. If the NPI cannot belong to an active individual or must not be looked up, settles the
     * request as `not_found`.
     * @throws {Refusal} `request_missing` for an unknown id
     */
    planLookup: (request: ToPlan): Promise<LookupPlan> => planLookup(deps, request),

    /**
     * Asks the NPI Registry about an NPI that the imported NPPES files do not contain, and stores
     * the response.
     * @param request.until no attempt is made after this, in milliseconds since the epoch
     * @returns null if the response is stored; otherwise the reason why the registry did not
     * respond
     * @throws {ApplicationFailure} retryable, while the registry is unavailable or limits us and
     * there is time left
     */
    async identify(
      request: RequestIds & { readonly until: number },
    ): Promise<string | null> {
      // The registry may have been asked already, by another lookup or by an earlier attempt of
      // this activity that died afterwards.
      if (!(await isRegistryDue(deps.db, request.npi))) return null;
      return await withHeartbeat(Context.current(), async (signal, now) => {
        const time = { signal, now, until: request.until };
        const trouble = await askRegistry(deps, request, time);
        if (trouble?.again) {
          throw retryLater(REGISTRY, trouble.why, trouble.afterMs);
        }
        return trouble?.why ?? null;
      });
    },
  };
}

async function planLookup(deps: LookupDeps, request: ToPlan): Promise<LookupPlan> {
  const { db, registry } = deps;
  const open = await findOpenRequest(db, request.requestId);
  if (open === null || open.isOverdue) {
    return await end(deps, request, 'deadline', 'failed');
  }
  if (open.isSandbox) {
    const plan = await planForSandbox(db, request);
    return plan ?? (await end(deps, request, 'settled'));
  }
  if (!hasNpiCheckDigit(request.npi)) {
    return await end(deps, request, 'check_digit');
  }
  const { refusal } = open;
  // The workflow plans again after it asked the registry, whose response may refuse the NPI, too.
  if (refusal !== null && refusal !== 'suppressed')
    return await end(deps, request, refusal);
  if (registry && !request.registry && open.isRegistryDue)
    return { kind: 'unidentified' };
  const begun = await beginLookup(deps, request);
  if (begun === null) return await end(deps, request, 'settled');
  // A suppressed person's request ends only here, next to those that end with `KNOWN_MISS`. If it
  // ended earlier, its time and its statuses would reveal the objection.
  if (refusal === 'suppressed') {
    return await end(deps, request, refusal);
  }
  return await planSources(deps, request, begun);
}

/**
 * Settles a request before any source is called. A request that is already final keeps its status.
 */
async function end(
  deps: LookupDeps,
  request: RequestIds,
  reason: Reason | 'settled',
  how: LookupEnd = 'finished',
): Promise<LookupPlan> {
  return {
    kind: 'settled',
    result: await settleAndSignal(deps, { ...request, reason }, how),
  };
}

type BegunLookup = NonNullable<Awaited<ReturnType<typeof beginLookup>>>;

/**
 * Joins the lookup of the NPI, and chooses its vendors.
 * @returns null if the request is final
 */
async function beginLookup(deps: LookupDeps, { requestId, npi }: ToPlan) {
  const { db, rules } = deps;
  const provider = await readProvider(db, npi);
  const about = await addPatterns(db, buildSubject(npi, provider, 'any'));
  const facts = { hash: hashOf(deps, npi, provider), employer: employerKind(about) };
  const lookup = await joinLookup(db, requestId, facts, rules.missMs);
  if (lookup === null) return null;
  const { lookupId, requestedType } = lookup;
  const subject = { ...about, requestedType };
  const chosen = await chooseVendors(deps, subject, lookup);
  return { lookupId, requestedType, provider, subject, ...chosen };
}

/** Decides which sources are called, in which order. */
async function planSources(
  deps: LookupDeps,
  request: ToPlan,
  begun: BegunLookup,
): Promise<LookupPlan> {
  const { db, verifiers, rules, subjects } = deps;
  const { requestId, npi } = request;
  const { lookupId, requestedType, provider, subject, called, skipped } = begun;
  subjects.keep(lookupId, subject);
  await recordSkipped(db, requestId, lookupId, skipped);
  const hasKnown = await copyKnown(db, {
    npi,
    lookupId,
    listed: provider === null ? [] : endpointCandidates(provider),
    freshnessMs: rules.freshnessMs,
    canVerify: verifiers.length > 0,
  });
  // Known addresses come first, because they cost no vendor's credits.
  const known: PlannedSource[] = hasKnown ? [{ vendor: null, capMs: KNOWN_MS }] : [];
  const sources = [...known, ...called];
  const obstacles = obstaclesOf(skipped);
  const unidentified = troubleOf(request, subject, obstacles);
  if (sources.length === 0 && unidentified === null && obstacles.includes(KNOWN_MISS)) {
    return await end(deps, request, KNOWN_MISS);
  }
  const { greylistMs } = rules;
  return { kind: 'ask', lookupId, requestedType, greylistMs, unidentified, sources };
}

/** Returns the vendors to call for a subject, in order, and the skipped ones with the reasons. */
async function chooseVendors(
  { vendors, spending }: LookupDeps,
  subject: Subject,
  { lookupId, requestedType, misses }: JoinedLookup,
) {
  const arranged = await spending.arrange(vendors, subject, lookupId);
  const called: PlannedSource[] = [];
  const skipped: SkippedVendor[] = [];
  for (const source of personalHalvesLast(arranged, requestedType)) {
    const vendor = source.vendor.id;
    const obstacle = obstacleTo(source, subject, misses);
    if (obstacle === null) called.push({ vendor, capMs: source.capMs });
    else skipped.push({ vendor, obstacle });
  }
  return { called, skipped };
}

/** Returns why vendors were skipped. Our own guesses are not a vendor. */
function obstaclesOf(skipped: readonly SkippedVendor[]): string[] {
  return skipped
    .filter(({ vendor }) => vendor !== PATTERN_SOURCE)
    .map(({ obstacle }) => obstacle);
}

/**
 * Returns why the registry did not respond, if that is the reason why we do not know the person and
 * a vendor is skipped. Otherwise null.
 */
function troubleOf(
  { registry }: ToPlan,
  { person }: Subject,
  obstacles: readonly string[],
): string | null {
  const isAffected = obstacles.some((obstacle) => obstacle !== KNOWN_MISS);
  return person === null && isAffected ? (registry?.trouble ?? null) : null;
}

/**
 * Returns a hash of everything that affects a vendor's response and our verdict about it. If the
 * hash has changed since a vendor found nothing, the vendor is asked again. Our own directory and
 * vendors' profiles are left out, because they change with most lookups, and each call may cost.
 */
function hashOf(
  { verifiers, rules }: Pick<LookupDeps, 'verifiers' | 'rules'>,
  npi: string,
  provider: ProviderFacts | null,
): string {
  const official = provider && { ...provider, colleagues: [], profiles: [] };
  const subject = buildSubject(npi, official, 'any');
  const { person, organization, otherOrganizations } = subject;
  const employers = [organization, ...otherOrganizations].map((one) => [
    one?.name,
    one?.domain,
  ]);
  const known = JSON.stringify([
    person,
    employers,
    rules.policy,
    verifiers.map(({ id }) => id),
  ]);
  return createHash('sha256').update(known).digest('base64');
}

/**
 * Returns the reason why a vendor is not called for this subject, or null if the vendor is called.
 */
function obstacleTo(
  { vendor, types }: VendorSource,
  subject: Subject,
  misses: string[],
): string | null {
  const { requestedType } = subject;
  if (requestedType !== 'any' && !types.includes(requestedType)) {
    return `gives no ${requestedType} email`;
  }
  const missing = missingOf(subject, vendor.needs);
  if (missing.length > 0) return `missing ${missing.join(', ')}`;
  return misses.includes(vendor.id) ? KNOWN_MISS : null;
}

/**
 * Asks the NPI Registry about an NPI that the imported NPPES files do not contain, and stores the
 * response.
 * @param time.until no attempt is made after this, in milliseconds since the epoch
 * @returns null if the response is stored. Otherwise `why` is the reason why there isn't one. `again`
 * is true if there is time for another attempt. `afterMs` is the delay before that attempt, or null
 * for the delay of the activity's retry policy.
 */
export async function askRegistry(
  { db, log, registry }: LookupDeps,
  { requestId, npi }: RequestIds,
  time: Readonly<{ now: Clock; signal: AbortSignal; until: number }>,
) {
  const { now, signal, until } = time;
  if (registry === null) return null;
  const later = (why: string, afterMs: number | null) => {
    return { why, again: now() + (afterMs ?? 0) <= until, afterMs };
  };
  const admit = () =>
    admitCall(db, {
      source: REGISTRY,
      limits: REGISTRY_LIMITS,
      cost: 0,
      requestId,
      patienceMs: until - now(),
    });
  const admission = await waitForSlot(REGISTRY, admit, signal);
  if (admission.kind === 'wait') {
    return later(admission.why, admission.afterMs);
  }
  const step = await countCall('registry', REGISTRY, registry.find(npi, signal));
  const outcome = outcomeOf(step);
  const change = await recordOne(db, REGISTRY, admission.era, outcome);
  logBreaker(log, REGISTRY, change, outcome);
  switch (step.kind) {
    case 'found':
      await storeRegistryResponse(db, npi, step.provider);
      return null;
    case 'inactive_or_unknown':
      await storeRegistryResponse(db, npi, null);
      return null;
    case 'retry':
      return later(wordOf(step), step.afterMs);
    case 'fatal':
      return { why: wordOf(step), again: false, afterMs: null };
    default:
      return step satisfies never;
  }
}

export type Subjects = ReturnType<typeof createSubjects>;

/**
 * The number of lookups whose subjects are kept in memory. When this many newer lookups have
 * started, an older one has usually ended.
 */
const MAX_SUBJECTS = 1000;

/**
 * Returns a cache of subjects, so that each worker builds a subject once per lookup and not before
 * every vendor call. The cache is only in memory, so it stores no second copy of personal data.
 * Suppressions and erasures are still checked before every vendor call.
 */
export function createSubjects(db: Database) {
  const kept = new Map<string, Subject>();
  const keep = (lookupId: string, subject: Subject) => {
    // A subject without a person is not cached, because another process may identify the person at
    // any time.
    if (subject.person === null) return;
    kept.set(lookupId, subject);
    const [oldest] = kept.keys();
    if (kept.size > MAX_SUBJECTS && oldest !== undefined) {
      kept.delete(oldest);
    }
  };
  const reload = async (lookupId: string, npi: string, requestedType: RequestedType) => {
    const subject = await readSubject(db, npi, requestedType);
    keep(lookupId, subject);
    return subject;
  };
  return {
    keep,
    /** Reads a subject again, because a vendor's profile has added to what we know. */
    reload,
    async of(
      lookupId: string,
      npi: string,
      requestedType: RequestedType,
    ): Promise<Subject> {
      const known = kept.get(lookupId);
      if (known) return known;
      return await reload(lookupId, npi, requestedType);
    },
  };
}

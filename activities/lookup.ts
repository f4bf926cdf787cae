import { createHash } from 'node:crypto';
import { Context } from '@temporalio/activity';
import type { Database } from '../db/client.ts';
import { queueKnownEmails } from '../db/lookups/candidates.ts';
import { joinLookups } from '../db/lookups/lookups.ts';
import { admitCall, recordOne } from '../db/lookups/sources.ts';
import { type Judged, recordSkipped } from '../db/lookups/vendor-attempts.ts';
import { countCall } from '../db/metrics.ts';
import { listRegistryDue, storeRegistryAnswer } from '../db/providers/providers.ts';
import { gate, readProvider } from '../db/providers/subject.ts';
import { findOpenRequest } from '../db/requests/facts.ts';
import type { LookupEnd } from '../db/requests/settle.ts';
import type { WantedType } from '../db/words.ts';
import type { LookupPlan, PlannedSource } from '../workflows/messages.ts';
import type { ActivityDeps, VendorSource } from './deps.ts';
import { logBreaker, outcomeOf, retryLater } from './failures.ts';
import { type Clock, withHeartbeat } from './heartbeat.ts';
import { wordOf } from './http/client.ts';
import { hasNpiCheckDigit } from './person/npi.ts';
import { REGISTRY_LIMITS } from './person/registry.ts';
import { buildSubject, endpointCandidates } from './person/subject.ts';
import { planForSandbox } from './sandbox.ts';
import { type RequestIds, type SettleDeps, settleAndSignal } from './settle.ts';
import { waitForSlot } from './slots.ts';
import { missingOf, type Subject } from './vendors/vendor.ts';

export type LookupDeps = SettleDeps &
  Pick<ActivityDeps, 'vendors' | 'verifiers' | 'registry'> & { readonly subjects: Subjects };

export const REGISTRY = 'registry';
/** The known addresses of one lookup hold up its vendors for at most this long. */
const KNOWN_MS = 2 * 60_000;

/**
 * Why a vendor that had nothing the last time is not asked, and why a request ends if no other
 * vendor is left.
 */
const KNOWN_MISS = 'known_miss';

type ToPlan = RequestIds & {
  /** Why the NPI Registry gave no response, if it was asked; null if it was not asked yet. */
  readonly registry: { readonly trouble: string | null } | null;
};

/** The activities that a lookup begins with. All are safe to repeat. */
export function createLookupActivities(deps: LookupDeps) {
  return {
    /**
     * Decides how a request is looked up, and makes it part of the open lookup of its NPI. An NPI
     * that cannot be an active individual, or that must not be looked up, is settled here as
     * `not_found`.
     * @throws {Refusal} `request_missing` for an unknown id
     */
    planLookup: (request: ToPlan): Promise<LookupPlan> => planLookup(deps, request),

    /**
     * Asks the NPI Registry who an NPI is that no import has brought, and keeps its response.
     * @param request.until no attempt is made after this, in milliseconds since the epoch
     * @returns why there is no response; null if it is kept
     * @throws {ApplicationFailure} retryable, while the registry is away or limits us and there is
     * time
     */
    async identify(request: RequestIds & { readonly until: number }): Promise<string | null> {
      const due = await listRegistryDue(deps.db, [request.npi]);
      // Another lookup, or an attempt of this one that died, may have asked already.
      if (due.length === 0) return null;
      return await withHeartbeat(Context.current(), async (signal, now) => {
        const time = { signal, now, until: request.until };
        const trouble = await askRegistry(deps, request, time);
        if (trouble?.again) throw retryLater(REGISTRY, trouble.why, trouble.afterMs);
        return trouble?.why ?? null;
      });
    },
  };
}

async function planLookup(deps: LookupDeps, request: ToPlan): Promise<LookupPlan> {
  const { db, registry } = deps;
  const open = await findOpenRequest(db, request.requestId);
  if (open === null || open.isOverdue) return await end(deps, request, 'deadline', 'failed');
  if (open.isSandbox)
    return (await planForSandbox(db, request)) ?? (await end(deps, request, 'settled'));
  if (!hasNpiCheckDigit(request.npi)) return await end(deps, request, 'check_digit');
  const refusal = (await gate(db, [request.npi])).get(request.npi);
  if (refusal) return await end(deps, request, refusal);
  if (registry && !request.registry && (await listRegistryDue(db, [request.npi])).length > 0) {
    return { kind: 'unidentified' };
  }
  return await planSources(deps, request);
}

/** Ends a lookup before any source is asked. A request that is final already keeps its status. */
async function end(
  deps: LookupDeps,
  request: RequestIds,
  reason: string,
  how: LookupEnd = 'answered',
): Promise<LookupPlan> {
  return { kind: 'settled', result: await settleAndSignal(deps, { ...request, reason }, how) };
}

async function planSources(deps: LookupDeps, request: ToPlan): Promise<LookupPlan> {
  const { db, vendors, verifiers, rules, subjects } = deps;
  const { requestId, npi } = request;
  const facts = await readProvider(db, npi);
  // The registry has said so just now. A suppression that comes later is seen before each vendor.
  if (facts?.refusal) return await end(deps, request, facts.refusal);
  const about = buildSubject(npi, facts, 'any');
  const hashes = new Map([[requestId, hashOf(deps, about)]]);
  const lookup = (await joinLookups(db, [requestId], hashes, rules.missMs)).get(requestId);
  if (!lookup) return await end(deps, request, 'settled');
  const subject = { ...about, wantedType: lookup.wantedType };
  subjects.keep(lookup.lookupId, subject);
  const judged = vendors.map((source) => ({
    vendor: source.vendor.id,
    capMs: source.capMs,
    obstacle: obstacleTo(source, subject, lookup.misses),
  }));
  await recordSkipped(db, [{ requestId, lookupId: lookup.lookupId, judged }]);
  const listed = facts ? endpointCandidates(facts) : [];
  const known = [{ npi, lookupId: lookup.lookupId, listed }];
  const waiting = await queueKnownEmails(db, known, rules.freshnessMs, verifiers.length > 0);
  const sources = sourcesOf(judged, waiting.size > 0);
  const skipped = judged.flatMap(({ obstacle }) => obstacle ?? []);
  const isLacking = subject.person === null && skipped.some((reason) => reason !== KNOWN_MISS);
  const unidentified = isLacking ? (request.registry?.trouble ?? null) : null;
  if (sources.length === 0 && unidentified === null && skipped.includes(KNOWN_MISS)) {
    return await end(deps, request, KNOWN_MISS);
  }
  const { lookupId, wantedType } = lookup;
  return { kind: 'ask', lookupId, wantedType, greylistMs: rules.greylistMs, unidentified, sources };
}

/** The known addresses come first, if any wait to be checked. */
function sourcesOf(judged: Judged['judged'], hasKnown: boolean): PlannedSource[] {
  const eligible = judged.filter(({ obstacle }) => obstacle === null);
  const sources: PlannedSource[] = eligible.map(({ vendor, capMs }) => ({ vendor, capMs }));
  if (hasKnown) sources.unshift({ vendor: null, capMs: KNOWN_MS });
  return sources;
}

/**
 * Of all that a vendor's answer, and what we make of it, depends on: while it is the same, so is a
 * miss.
 */
function hashOf(
  { verifiers, rules }: Pick<LookupDeps, 'verifiers' | 'rules'>,
  subject: Subject,
): string {
  const { person, organization, otherOrganizations } = subject;
  const employers = [organization, ...otherOrganizations].map((one) => [one?.name, one?.domain]);
  const known = JSON.stringify([person, employers, rules.policy, verifiers.map(({ id }) => id)]);
  return createHash('sha256').update(known).digest('base64');
}

/** Why a vendor is not asked about this subject; null if it is. */
function obstacleTo(
  { vendor, types }: VendorSource,
  subject: Subject,
  misses: string[],
): string | null {
  const { wantedType } = subject;
  if (wantedType !== 'any' && !types.includes(wantedType)) return `gives no ${wantedType} email`;
  const missing = missingOf(subject, vendor.needs);
  if (missing.length > 0) return `missing ${missing.join(', ')}`;
  return misses.includes(vendor.id) ? KNOWN_MISS : null;
}

/**
 * Asks the NPI Registry who an NPI is that no import has brought, and keeps the answer.
 * @param time.until no attempt is made after this, in milliseconds since the epoch
 * @returns null once the answer is kept; else why there is none, and whether there is time to ask
 * again, and after how long: null for our own backoff
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
  const limited = { source: REGISTRY, limits: REGISTRY_LIMITS, cost: 0, requestId };
  const admit = () => admitCall(db, { ...limited, patienceMs: until - now() });
  const admission = await waitForSlot(REGISTRY, admit, signal);
  if (admission.kind === 'wait') return later(admission.why, admission.afterMs);
  const step = await countCall('registry', REGISTRY, registry.find(npi, signal));
  const outcome = outcomeOf(step);
  logBreaker(log, REGISTRY, await recordOne(db, REGISTRY, admission.era, outcome), outcome);
  switch (step.kind) {
    case 'found':
      await storeRegistryAnswer(db, npi, step.provider);
      return null;
    case 'inactive_or_unknown':
      await storeRegistryAnswer(db, npi, null);
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

/** A lookup that is older than so many others has ended. */
const SUBJECTS_AT_MOST = 1000;

/**
 * Who each lookup is about, built once per lookup and worker and not at every step of a vendor's.
 * It is kept in memory alone, so that nothing of a person is stored a second time; what an erasure
 * must stop is checked at every step.
 */
export function createSubjects(db: Database) {
  const kept = new Map<string, Subject>();
  const keep = (lookupId: string, subject: Subject) => {
    // Who is not known yet may be identified at any time, in another process too.
    if (subject.person === null) return;
    kept.set(lookupId, subject);
    const [oldest] = kept.keys();
    if (kept.size > SUBJECTS_AT_MOST && oldest !== undefined) kept.delete(oldest);
  };
  return {
    keep,
    async of(lookupId: string, npi: string, wantedType: WantedType): Promise<Subject> {
      const known = kept.get(lookupId);
      if (known) return known;
      const subject = buildSubject(npi, await readProvider(db, npi), wantedType);
      keep(lookupId, subject);
      return subject;
    },
  };
}

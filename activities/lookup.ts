import { createHash } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import type { Database } from '../db/client.ts';
import { queueKnownEmails } from '../db/lookups/candidates.ts';
import { joinLookups } from '../db/lookups/lookups.ts';
import { admitCall, recordOne } from '../db/lookups/sources.ts';
import { type Judged, recordSkipped } from '../db/lookups/vendor-attempts.ts';
import { countCall } from '../db/metrics.ts';
import { storeRegistryAnswer } from '../db/providers/providers.ts';
import { readProvider } from '../db/providers/subject.ts';
import type { WantedType } from '../db/words.ts';
import type { LookupPlan, Unknown } from '../workflows/messages.ts';
import type { ActivityDeps, VendorSource } from './deps.ts';
import { logBreaker, outcomeOf } from './failures.ts';
import type { Clock } from './heartbeat.ts';
import { wordOf } from './http/client.ts';
import { REGISTRY_LIMITS } from './person/registry.ts';
import { buildSubject, endpointCandidates } from './person/subject.ts';
import { missingOf, type Subject } from './vendors/vendor.ts';

export type LookupDeps = Pick<ActivityDeps, 'db' | 'log' | 'vendors' | 'verifiers' | 'registry' | 'rules'> & {
  readonly subjects: Subjects;
};

export const REGISTRY = 'registry';
/** The known addresses of one lookup hold up its vendors for so long at most. */
const KNOWN_MS = 2 * 60_000;

/** Why a vendor is not asked that had nothing the last time, and why a request ends if no other is left. */
const KNOWN_MISS = 'known_miss';

/**
 * Decides how requests of one batch are looked up. Each joins its lookup once, however often this is repeated.
 * @param trouble why the registry could not say who they are
 */
export async function makePlans(
  deps: LookupDeps,
  requests: readonly Unknown[],
  trouble: string | null = null,
): Promise<(Unknown & { readonly plan: LookupPlan })[]> {
  const { db, vendors, verifiers, rules, subjects } = deps;
  const known = await Promise.all(
    requests.map(async (request) => {
      const facts = await readProvider(db, request.npi);
      return { ...request, facts, about: buildSubject(request.npi, facts, 'any') };
    }),
  );
  // The registry has said so since the batch was planned. A suppression that came since is seen before each vendor.
  const wanted = known.filter(({ facts }) => !facts?.refusal);
  const hashes = new Map(wanted.map(({ requestId, about }) => [requestId, hashOf(deps, about)]));
  const joined = await joinLookups(db, [...hashes.keys()], hashes, rules.missMs);
  const lookups = wanted.flatMap(({ about, facts, ...request }) => {
    const lookup = joined.get(request.requestId);
    if (!lookup) return [];
    const subject = { ...about, wantedType: lookup.wantedType };
    subjects.keep(lookup.lookupId, subject);
    const judged = vendors.map((source) => ({
      ...{ vendor: source.vendor.id, capMs: source.capMs },
      obstacle: obstacleTo(source, subject, lookup.misses),
    }));
    return [{ ...request, ...lookup, subject, listed: facts ? endpointCandidates(facts) : [], judged }];
  });
  await recordSkipped(db, lookups);
  const waiting = await queueKnownEmails(db, lookups, rules.freshnessMs, verifiers.length > 0);
  const plans = new Map(
    lookups.map((one) => [one.requestId, planOf(one, waiting.has(one.lookupId), trouble, rules)]),
  );
  return known.map(({ requestId, npi, facts }) => {
    const plan = plans.get(requestId) ?? { kind: 'end', reason: facts?.refusal ?? 'settled' };
    return { requestId, npi, plan };
  });
}

/** Of all that a vendor's answer, and what we make of it, depends on: while it is the same, so is a miss. */
function hashOf({ verifiers, rules }: LookupDeps, subject: Subject): string {
  const { person, organization, otherOrganizations } = subject;
  const employers = [organization, ...otherOrganizations].map((one) => [one?.name, one?.domain]);
  const known = JSON.stringify([person, employers, rules.policy, verifiers.map(({ id }) => id)]);
  return createHash('sha256').update(known).digest('base64');
}

/** @param isWaiting whether addresses that are known already wait to be checked */
function planOf(
  { lookupId, subject: { person, wantedType }, judged }: Judged & { readonly subject: Subject },
  isWaiting: boolean,
  trouble: string | null,
  { greylistMs }: LookupDeps['rules'],
): LookupPlan {
  const skipped = judged.flatMap(({ obstacle }) => obstacle ?? []);
  const isLacking = person === null && skipped.some((reason) => reason !== KNOWN_MISS);
  const unidentified = isLacking ? trouble : null;
  const eligible = judged.filter(({ obstacle }) => obstacle === null);
  const known = isWaiting ? [{ vendor: null, capMs: KNOWN_MS }] : [];
  const sources = [...known, ...eligible.map(({ vendor, capMs }) => ({ vendor, capMs }))];
  if (sources.length === 0 && unidentified === null && skipped.includes(KNOWN_MISS)) {
    return { kind: 'end', reason: KNOWN_MISS };
  }
  return { kind: 'ask', lookupId, wantedType, greylistMs, unidentified, sources };
}

/** Why a vendor is not asked about this subject; null if it is. */
function obstacleTo({ vendor, types }: VendorSource, subject: Subject, misses: string[]): string | null {
  const { wantedType } = subject;
  if (wantedType !== 'any' && !types.includes(wantedType)) return `gives no ${wantedType} email`;
  const missing = missingOf(subject, vendor.needs);
  if (missing.length > 0) return `missing ${missing.join(', ')}`;
  return misses.includes(vendor.id) ? KNOWN_MISS : null;
}

/**
 * Asks the NPI Registry who an NPI is that no import has brought, and keeps the answer.
 * @param time.turnBy a turn that comes until then is waited for here; both moments in milliseconds since the epoch
 * @returns null once the answer is kept; else why there is none, and whether there is time to ask again, and after how
 *   long: null for our own backoff
 */
export async function askRegistry(
  { db, log, registry }: LookupDeps,
  { requestId, npi }: Unknown,
  time: Readonly<{ now: Clock; signal: AbortSignal; turnBy: number; until: number }>,
) {
  const { now, signal, turnBy, until } = time;
  if (registry === null) return null;
  const later = (why: string, afterMs: number | null) => {
    return { why, again: now() + (afterMs ?? 0) <= until, afterMs };
  };
  const limited = { source: REGISTRY, limits: REGISTRY_LIMITS, cost: 0, requestId };
  const admit = () => admitCall(db, { ...limited, patienceMs: until - now() });
  let admission = await admit();
  while (admission.kind === 'wait') {
    const { why, afterMs } = admission;
    if (why !== 'rate_limit' || now() + afterMs > Math.min(turnBy, until)) return later(why, afterMs);
    await setTimeout(afterMs, null, { signal });
    admission = await admit();
  }
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
 * Who each lookup is about, built once per lookup and worker and not at every step of a vendor's. It is kept in memory
 * alone, so that nothing of a person is stored a second time; what an erasure must stop is checked at every step.
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

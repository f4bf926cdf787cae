import { createHash } from 'node:crypto';
import { Context } from '@temporalio/activity';
import type { Database } from '../db/client.ts';
import { queueKnownEmails } from '../db/lookups/candidates.ts';
import { joinLookup, listMisses } from '../db/lookups/lookups.ts';
import { admitCall, recordOne, type SourceLimits } from '../db/lookups/sources.ts';
import { recordSkipped } from '../db/lookups/vendor-attempts.ts';
import { storeRegistryAbsence, storeRegistryProvider } from '../db/providers/providers.ts';
import { readProvider } from '../db/providers/subject.ts';
import type { WantedType } from '../db/words.ts';
import type { LookupPlan } from '../workflows/messages.ts';
import type { ActivityDeps, VendorSource } from './deps.ts';
import { outcomeOfTrouble, retryLater } from './failures.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { Registry } from './person/registry.ts';
import { buildSubject, endpointCandidates } from './person/subject.ts';
import { missingOf, type Subject } from './vendors/vendor.ts';

export type LookupDeps = Pick<ActivityDeps, 'db' | 'vendors' | 'verifiers' | 'registry' | 'rules'> & {
  readonly subjects: Subjects;
};

interface Whom {
  readonly requestId: string;
  readonly npi: string;
}

/** Five a second, as the registry's good clients do; it publishes no limit (domain knowledge of its users). */
const REGISTRY_LIMITS: SourceLimits = { rates: [{ calls: 5, perMs: 1000 }], dailyCredits: null };
const REGISTRY = 'registry';
/** The known addresses of one lookup hold up its vendors for so long at most. */
const KNOWN_MS = 2 * 60_000;

/** Why a vendor is not asked that had nothing the last time, and why a request ends if no other is left. */
const KNOWN_MISS = 'known_miss';

/** Who an NPI is that no import has brought, and whom to ask about it. */
export function createLookupActivities(deps: LookupDeps) {
  const { db, registry } = deps;
  return {
    /**
     * Asks the NPI Registry who an NPI is that no import has brought, keeps the answer, and plans the lookup by it.
     * @param question.until after this, in milliseconds since the epoch, the plan is made without the registry
     * @throws {ApplicationFailure} retryable, if the registry is away or our limit is reached
     */
    async identify({ until, ...whom }: Whom & { readonly until: number }): Promise<LookupPlan> {
      return await withHeartbeat(Context.current(), async (signal, now) => {
        const trouble =
          registry === null ? null : await askRegistry(db, registry, whom, until - now(), signal);
        if (trouble?.again && now() + (trouble.afterMs ?? 0) <= until) {
          throw retryLater(REGISTRY, trouble.why, trouble.afterMs);
        }
        return await makePlan(deps, whom, trouble?.why ?? null);
      });
    },
  };
}

/**
 * Decides how one NPI is looked up. A request joins its lookup once, however often this is repeated.
 * @param trouble why the registry could not say who it is
 */
export async function makePlan(
  { db, vendors, verifiers, rules, subjects }: LookupDeps,
  { requestId, npi }: Whom,
  trouble: string | null,
): Promise<LookupPlan> {
  const facts = await readProvider(db, npi);
  // The registry has said so since the batch was planned. A suppression that came since is seen before each vendor.
  if (facts?.refusal) return { kind: 'end', reason: facts.refusal };
  const about = buildSubject(npi, facts, 'any');
  const { person, organization } = about;
  const employer = [organization?.name, organization?.domain];
  // All that a vendor's answer, and what we make of it, depends on: while it is the same, so is a miss.
  const known = JSON.stringify([person, employer, rules.policy, verifiers.map(({ id }) => id)]);
  const hash = createHash('sha256').update(known).digest('base64');
  const lookup = await joinLookup(db, requestId, hash);
  if (lookup === null) return { kind: 'end', reason: 'settled' };
  const { lookupId, wantedType } = lookup;
  const subject = { ...about, wantedType };
  subjects.keep(lookupId, subject);
  const misses = await listMisses(db, { npi, wantedType, facts: hash, missMs: rules.missMs });
  const judged = vendors.map((source) => ({ source, obstacle: obstacleTo(source, subject, misses) }));
  const skipped = judged.flatMap(({ source, obstacle }) =>
    obstacle === null ? [] : [{ vendor: source.vendor.id, reason: obstacle }],
  );
  await recordSkipped(db, { requestId, lookupId }, skipped);
  // Without a verifier nothing could be learned of them.
  const listed = facts === null ? [] : endpointCandidates(facts);
  const waiting =
    verifiers.length === 0 ? 0 : await queueKnownEmails(db, { npi, lookupId, listed, ...rules });
  const eligible = judged
    .filter(({ obstacle }) => obstacle === null)
    .map(({ source }) => ({ vendor: source.vendor.id, capMs: source.capMs }));
  const isLacking = person === null && skipped.some(({ reason }) => reason !== KNOWN_MISS);
  const unidentified = isLacking ? trouble : null;
  const sources = waiting > 0 ? [{ vendor: null, capMs: KNOWN_MS }, ...eligible] : eligible;
  if (sources.length === 0 && unidentified === null && skipped.some(({ reason }) => reason === KNOWN_MISS)) {
    return { kind: 'end', reason: KNOWN_MISS };
  }
  return { kind: 'ask', lookupId, wantedType, greylistMs: rules.greylistMs, unidentified, sources };
}

/** Why a vendor is not asked about this subject; null if it is. */
function obstacleTo({ vendor, types }: VendorSource, subject: Subject, misses: Set<string>): string | null {
  const { wantedType } = subject;
  if (wantedType !== 'any' && !types.includes(wantedType)) return `gives no ${wantedType} email`;
  const missing = missingOf(subject, vendor.needs);
  if (missing.length > 0) return `missing ${missing.join(', ')}`;
  return misses.has(vendor.id) ? KNOWN_MISS : null;
}

interface RegistryTrouble {
  readonly why: string;
  /** Whether the same question may be answered later, and when; null for our own backoff. */
  readonly again: boolean;
  readonly afterMs: number | null;
}

/** @returns null once the registry has answered and the answer is kept */
async function askRegistry(
  db: Database,
  registry: Registry,
  { requestId, npi }: Whom,
  patienceMs: number,
  signal: AbortSignal,
): Promise<RegistryTrouble | null> {
  const call = { source: REGISTRY, limits: REGISTRY_LIMITS, cost: 0, requestId, patienceMs };
  const admission = await admitCall(db, call);
  if (admission.kind === 'wait') return { why: admission.why, again: true, afterMs: admission.afterMs };
  const step = await registry.find(npi, signal);
  const isTrouble = step.kind === 'retry' || step.kind === 'fatal';
  await recordOne(db, REGISTRY, admission.era, isTrouble ? outcomeOfTrouble(step) : { kind: 'answered' });
  switch (step.kind) {
    case 'found':
      await storeRegistryProvider(db, step.provider);
      return null;
    case 'inactive_or_unknown':
      await storeRegistryAbsence(db, npi);
      return null;
    case 'retry':
      return { why: step.why, again: true, afterMs: step.afterMs };
    case 'fatal':
      return { why: `protocol: ${step.field}`, again: false, afterMs: null };
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

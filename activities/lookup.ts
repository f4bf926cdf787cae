import { Context } from '@temporalio/activity';
import { queueKnownEmails } from '../db/lookups/candidates.ts';
import { joinLookup, recordSkipped } from '../db/lookups/lookups.ts';
import { admitOne, type CallOutcome, recordOne, type SourceLimits } from '../db/lookups/sources.ts';
import { isRegistryDue, storeRegistryAbsence, storeRegistryProvider } from '../db/providers/providers.ts';
import { gate, readProvider } from '../db/providers/subject.ts';
import type { LookupPlan, VendorAnswer } from '../workflows/messages.ts';
import { retryLater } from './failures.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { ActivityDeps, VendorSource } from './index.ts';
import type { RegistryStep } from './person/registry.ts';
import { buildSubject, endpointCandidates } from './person/subject.ts';
import { missingOf } from './vendors/employee.ts';
import { outcomeOfTrouble } from './vendors/step-record.ts';
import type { Subject } from './vendors/vendor.ts';
import type { ToVerify, Verify } from './verify.ts';

type LookupDeps = Pick<ActivityDeps, 'db' | 'vendors' | 'verifiers' | 'registry' | 'rules'>;

interface Whom {
  readonly requestId: string;
  readonly npi: string;
}

/** Five a second, as the registry's good clients do; it publishes no limit (domain knowledge of its users). */
const REGISTRY_LIMITS: SourceLimits = { rates: [{ calls: 5, perMs: 1000 }], dailyCredits: null };
const REGISTRY = 'registry';

/** What surrounds the vendors: who the NPI is, whom to ask, and the addresses that are known already. */
export function createLookupActivities(
  { db, vendors, verifiers, registry, rules }: LookupDeps,
  verify: Verify,
) {
  return {
    /**
     * Decides how one NPI is looked up. Safe to repeat: a request joins its lookup once.
     * @param identified whether the registry has been asked already
     */
    async planLookup({ requestId, npi, identified }: Whom & { identified: boolean }): Promise<LookupPlan> {
      const refusal = (await gate(db, [npi])).get(npi);
      if (refusal) return { kind: 'end', reason: refusal };
      if (registry !== null && !identified && (await isRegistryDue(db, npi))) return { kind: 'identify' };
      const lookup = await joinLookup(db, requestId);
      if (lookup === null) return { kind: 'end', reason: 'settled' };
      const { lookupId, wantedType } = lookup;
      const facts = await readProvider(db, npi);
      const subject = buildSubject(npi, facts, wantedType);
      const judged = vendors.map((source) => ({ source, obstacle: obstacleTo(source, subject) }));
      const skipped = judged.flatMap(({ source, obstacle }) =>
        obstacle === null ? [] : [{ vendor: source.provider.id, reason: obstacle }],
      );
      await recordSkipped(db, requestId, skipped);
      // Without a verifier nothing could be learnt of them.
      const listed = facts === null ? [] : endpointCandidates(facts);
      const known =
        verifiers.length === 0 ? 0 : await queueKnownEmails(db, { npi, lookupId, listed, ...rules });
      return {
        kind: 'ask',
        lookupId,
        wantedType,
        known,
        greylistMs: rules.greylistMs,
        nameless: subject.person === null && skipped.length > 0,
        vendors: judged
          .filter(({ obstacle }) => obstacle === null)
          .map(({ source }) => ({ id: source.provider.id, capMs: source.capMs })),
      };
    },

    /**
     * Asks the NPI Registry who an NPI is that no import has brought, and keeps the answer.
     * @throws {ApplicationFailure} retryable, where the registry is away or our limit is reached
     */
    async identify({ npi }: Whom): Promise<VendorAnswer> {
      if (registry === null) return { kind: 'skip', reason: 'not_configured' };
      return await withHeartbeat(Context.current(), async (signal) => {
        const admission = await admitOne(db, REGISTRY, REGISTRY_LIMITS, 0);
        if (admission.kind === 'wait') throw retryLater(REGISTRY, admission.why, admission.afterMs);
        const step = await registry.find(npi, signal);
        await recordOne(db, REGISTRY, admission.era, outcomeOf(step));
        switch (step.kind) {
          case 'found':
            await storeRegistryProvider(db, step.provider);
            return { kind: 'found', reason: null };
          case 'inactive_or_unknown':
            await storeRegistryAbsence(db, npi);
            return { kind: 'miss', reason: null };
          case 'retry':
            throw retryLater(REGISTRY, step.why, step.afterMs);
          case 'fatal':
            return { kind: 'fatal', reason: `protocol: ${step.field}` };
          default:
            return step satisfies never;
        }
      });
    },

    /** Checks the addresses of an NPI that are known already, or that a mail server asked to come back for. */
    async verifyEmails(
      what: Whom &
        Pick<Extract<LookupPlan, { kind: 'ask' }>, 'lookupId' | 'wantedType'> &
        Pick<ToVerify, 'patience'>,
    ): Promise<VendorAnswer> {
      return await withHeartbeat(Context.current(), (signal) => verify(what, signal));
    },
  };
}

/** Why a vendor is not asked about this subject; null where it is. */
function obstacleTo({ provider, types }: VendorSource, subject: Subject): string | null {
  const { wantedType } = subject;
  if (wantedType !== 'any' && !types.includes(wantedType)) return `gives no ${wantedType} email`;
  const missing = missingOf(subject, provider.needs);
  return missing.length === 0 ? null : `missing ${missing.join(', ')}`;
}

function outcomeOf(step: RegistryStep): CallOutcome {
  const answered = step.kind === 'found' || step.kind === 'inactive_or_unknown';
  return answered ? { kind: 'answered' } : outcomeOfTrouble(step, false);
}

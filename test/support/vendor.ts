import type { RegistryStep } from '../../activities/person/registry.ts';
import type { Step, Subject, Vendor } from '../../activities/vendors/vendor.ts';
import { PRACTICE_DOMAINS } from '../../deploy/local/sim/people.ts';

/** One step of a scripted conversation. */
export interface ScriptedCall {
  readonly operation: 'submit' | 'poll';
  /** Counted from 1, per NPI and operation. */
  readonly nth: number;
  readonly signal: AbortSignal;
}

export type Script = (call: ScriptedCall) => Step | Promise<Step>;

/** A vendor whose answers a test writes, for what no simulator does on demand. */
export interface ScriptedVendor extends Vendor {
  /** How it answers about one NPI from now on; it knows nobody else. */
  script(npi: string, answer: Script): void;
  /** How often it was asked. */
  asked(npi: string, operation: ScriptedCall['operation']): number;
}

/** @param id as it is stored and shown; two vendors of one stack need different ones */
export function createScriptedVendor(id = 'scripted'): ScriptedVendor {
  const scripts = new Map<string, Script>();
  const counts = new Map<string, number>();
  const asked = (npi: string, operation: string) => counts.get(`${operation} ${npi}`) ?? 0;
  const answer = async (operation: ScriptedCall['operation'], { npi }: Subject, signal: AbortSignal) => {
    const nth = asked(npi, operation) + 1;
    counts.set(`${operation} ${npi}`, nth);
    const script = scripts.get(npi);
    return script ? await script({ operation, nth, signal }) : ({ kind: 'miss', reason: 'nobody' } as const);
  };
  return {
    id,
    needs: ['npi'],
    gives: ['professional', 'personal'],
    isDated: true,
    repeatIsFree: true,
    callMs: 30_000,
    cost: () => 1,
    submit: (subject, signal) => answer('submit', subject, signal),
    poll: (_jobRef, subject, signal) => answer('poll', subject, signal),
    script: (npi, script) => void scripts.set(npi, script),
    asked,
  };
}

/** A valid professional address for an NPI, seen by the vendor just now. */
export function foundStep(npi: string): Step {
  const email = `npi${npi}@${PRACTICE_DOMAINS[0]}`;
  return {
    kind: 'found',
    identity: { npi, name: null, state: null },
    candidates: [{ email, vendorType: 'professional', verdict: 'valid', validatedAt: new Date() }],
  };
}

/** A script that answers nothing until it is released, and gives up like a real call when it is aborted. */
export function heldScript(step: Step): { readonly script: Script; release(): void } {
  const held = Promise.withResolvers<Step>();
  return {
    script: ({ signal }) => Promise.race([held.promise, aborted(signal)]),
    release: () => held.resolve(step),
  };
}

/** Never resolves; rejects as soon as the signal aborts. */
export function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
}

/** What the registry says of a person of whom it knows little more than the name. */
export function person(npi: string, lastName = 'DOE'): RegistryStep {
  const nothing = {
    middleName: null,
    nameSuffix: null,
    credential: null,
    otherLastName: null,
    otherFirstName: null,
    organizationName: null,
    taxonomyCode: null,
    practice: null,
    updatedOn: null,
  };
  const lists = { endpoints: [], otherNames: [], locations: [] };
  return {
    kind: 'found',
    provider: { npi, entityType: 1, firstName: 'MARY', lastName, ...nothing, ...lists },
  };
}

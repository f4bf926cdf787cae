import type { EmailType } from '../../db/words.ts';
import type { Step, Vendor } from './vendor.ts';

/** The job reference before the second type was requested. */
const NOT_STARTED = '';

/**
 * Wraps a vendor that charges for each type of email. For a request of any type, it then buys a
 * professional email first, and a personal one only if the vendor has no professional one. The
 * second request is made in `poll`, so that the vendor's limits apply to it and a crash cannot lose
 * it. If its response is lost, the next poll sends it again, and we may pay for it twice.
 */
export function professionalFirst(vendor: Vendor): Vendor {
  return {
    ...vendor,
    cost(requestedType) {
      if (requestedType !== 'any') return vendor.cost(requestedType);
      return Math.max(vendor.cost('professional'), vendor.cost('personal'));
    },

    async submit(subject, signal) {
      if (subject.requestedType !== 'any') return await vendor.submit(subject, signal);
      const asked = { ...subject, requestedType: 'professional' } as const;
      return following('professional', await vendor.submit(asked, signal));
    },

    async poll(jobRef, subject, signal) {
      if (subject.requestedType !== 'any')
        return await vendor.poll(jobRef, subject, signal);
      const { type, ref } = jobOf(jobRef);
      const asked = { ...subject, requestedType: type };
      if (ref === NOT_STARTED) return following(type, await vendor.submit(asked, signal));
      return following(type, await vendor.poll(ref, asked, signal));
    },
  };
}

/** Returns the type that a job reference of this wrapper is about, and the vendor's reference. */
function jobOf(jobRef: string): { readonly type: EmailType; readonly ref: string } {
  const [word = '', ...ref] = jobRef.split(':');
  const type = word === 'personal' ? 'personal' : 'professional';
  return { type, ref: ref.join(':') };
}

/** Returns the step after the vendor's response to a request for one type. */
function following(type: EmailType, step: Step): Step {
  if (step.kind === 'pending') return { ...step, jobRef: `${type}:${step.jobRef}` };
  if (type === 'personal' || !isWithoutEmail(step)) return step;
  return { kind: 'pending', jobRef: `personal:${NOT_STARTED}`, pollAfterMs: 0 };
}

/** Returns true if the vendor has no email of the type, or only some that do not work. */
function isWithoutEmail(step: Step): boolean {
  if (step.kind === 'miss') return true;
  if (step.kind !== 'found') return false;
  return step.candidates.every(({ verdict }) => verdict === 'invalid');
}

import {
  type EmailType,
  isPersonalHalf,
  personalHalfOf,
  type RequestedType,
} from '../../db/words.ts';
import type { Subject, Vendor } from './vendor.ts';

// A vendor that charges for each type of email is called as two halves, one for each type. A request
// of any type calls the personal halves only after all other vendors, so a personal email is bought
// only if no professional one passed our checks.

/**
 * Returns true for a vendor that charges for each type of email, so that a search for both types
 * costs more than a search for one.
 */
export function isPricedByType(vendor: Vendor): boolean {
  const most = Math.max(...vendor.gives.map((type) => vendor.cost(type)));
  return vendor.gives.length > 1 && vendor.cost('any') > most;
}

/** Returns the half of a vendor that looks only for emails of one type. */
export function halfOf(vendor: Vendor, type: EmailType): Vendor {
  const asked = (subject: Subject) => ({ ...subject, requestedType: type });
  return {
    ...vendor,
    id: type === 'personal' ? personalHalfOf(vendor.id) : vendor.id,
    gives: [type],
    cost: () => vendor.cost(type),
    submit: (subject, signal) => vendor.submit(asked(subject), signal),
    poll: (jobRef, subject, signal) => vendor.poll(jobRef, asked(subject), signal),
  };
}

/** Returns sources in their order, but for requests of any type with the personal halves last. */
export function personalHalvesLast<T extends { readonly vendor: Pick<Vendor, 'id'> }>(
  sources: readonly T[],
  requestedType: RequestedType,
): readonly T[] {
  if (requestedType !== 'any') return sources;
  const isLast = ({ vendor }: T) => Number(isPersonalHalf(vendor.id));
  return sources.toSorted((one, other) => isLast(one) - isLast(other));
}

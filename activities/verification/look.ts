import type { Verdict } from '../vendors/vendor.ts';
import { isDirect } from './direct.ts';
import { isDisposable } from './disposable.ts';
import { registrableDomain } from './domain.ts';
import type { Reason } from './reasons.ts';
import { isRelay } from './relay.ts';
import { isRole } from './role.ts';
import { type Address, parseAddress } from './syntax.ts';

/** What a candidate's text is: an address that nothing speaks against, or why it is none of a person's own. */
export type Looked =
  | { readonly kind: 'address'; readonly address: Address }
  | {
      readonly kind: 'refused';
      /** Normalised as far as it goes. */
      readonly email: string;
      readonly verdict: Verdict;
      readonly reason: Reason;
    };

/** Judges an address by its looks. No question to anyone: what is refused here costs nothing. */
export function look(text: string): Looked {
  const address = parseAddress(text);
  if (address === null) {
    return { kind: 'refused', email: text.trim().toLowerCase(), verdict: 'invalid', reason: 'syntax' };
  }
  const refusal = refuse(address);
  return refusal ? { kind: 'refused', email: address.email, ...refusal } : { kind: 'address', address };
}

/** Addresses that are not a person's own mailbox, in the order in which one reason hides another. */
function refuse({ local, domain }: Address): { readonly verdict: Verdict; readonly reason: Reason } | null {
  if (registrableDomain(domain) === null) return { verdict: 'invalid', reason: 'no_suffix' };
  if (isDisposable(domain)) return { verdict: 'invalid', reason: 'disposable' };
  if (isRelay(domain)) return { verdict: 'risky', reason: 'relay' };
  if (isRole(local)) return { verdict: 'risky', reason: 'role' };
  if (isDirect(domain)) return { verdict: 'invalid', reason: 'direct' };
  return null;
}

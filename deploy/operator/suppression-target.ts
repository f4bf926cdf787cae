import { registrableDomain } from '../../activities/verification/domains.ts';
import { parseAddress } from '../../activities/verification/syntax.ts';
import { hashAddress, type SuppressionTarget } from '../../db/privacy/suppressions.ts';

// What operators and imported lists name, as the tables have it.

/** How a value may be given: an address in clear, or as its SHA-256. */
export const TARGET_WORDS = ['npi', 'email', 'sha256', 'domain'] as const;
export type TargetWord = (typeof TARGET_WORDS)[number];

/**
 * Ten digits are an NPI, 64 hex digits an address's SHA-256, anything with an @ an address; the rest is a domain.
 * @param text without space around it
 */
export function guessWord(text: string): TargetWord {
  if (/^[0-9]{10}$/.test(text)) return 'npi';
  if (/^[0-9a-f]{64}$/i.test(text)) return 'sha256';
  return text.includes('@') ? 'email' : 'domain';
}

/**
 * An address becomes its hash here: beyond this point nobody can read whom a list names.
 * @returns null where the text is none of that kind
 */
export function parseTarget(word: TargetWord, text: string): SuppressionTarget | null {
  switch (word) {
    case 'npi':
      return /^[0-9]{10}$/.test(text) ? { kind: 'npi', value: text } : null;
    case 'sha256':
      return /^[0-9a-f]{64}$/i.test(text) ? { kind: 'email', value: text.toLowerCase() } : null;
    case 'email': {
      const address = parseAddress(text);
      return address && { kind: 'email', value: hashAddress(address.email) };
    }
    case 'domain': {
      const domain = parseAddress(`x@${text}`)?.domain;
      // `com` or `co.uk` would silence a whole country.
      return domain === undefined || isSuffix(domain) ? null : { kind: 'domain', value: domain };
    }
    default:
      return word satisfies never;
  }
}

/** Domains under a suffix that does not exist may be suppressed: nobody is reached there anyway. */
function isSuffix(domain: string): boolean {
  return registrableDomain(domain) === null && registrableDomain(`x.${domain}`) !== null;
}

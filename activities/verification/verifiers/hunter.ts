import { inBody, retryAfterMs } from '../../http/client.ts';
import type { Field } from '../../http/fields.ts';
import { HUNTER } from '../../vendors/hunter.ts';
import {
  INCONCLUSIVE,
  judgment,
  type VerifierKind,
  type VerifierStep,
} from './verifier.ts';

const MEANINGS: ReadonlyMap<string, VerifierStep> = new Map([
  ['valid', judgment('valid', 'mailbox_ok')],
  ['invalid', judgment('invalid', 'mailbox_missing')],
  ['accept_all', judgment('catch_all', null)],
  ['disposable', judgment('risky', 'disposable')],
]);

/**
 * Hunter's Email Verifier, version 2 (hunter.io/api-documentation/v2#email-verifier, read in
 * November 2026). It does not contact the mail servers of free mail services, so its status for
 * such an address is `webmail`, which we read as `unknown`. It uses the key and the URL of Hunter's
 * Email Finder, but has its own limits and breaker.
 */
export const HUNTER_VERIFIER = {
  id: 'hunter-verifier',
  url: HUNTER.url,
  rates: [
    { calls: 10, perMs: 1000 },
    { calls: 300, perMs: 60_000 },
  ],
  // The vendor's documentation says: "The request will run for 20 seconds."
  callMs: 30_000,
  // The cost in credits of the account, in which a search by the Email Finder costs 1. A check
  // without a result is free (help.hunter.io, "How do credits work").
  cost: 0.5,
  headersOf: (apiKey) => ({ 'X-API-KEY': apiKey }),
  requestFor: (email) => ({
    path: `/email-verifier?${new URLSearchParams({ email })}`,
  }),
  meanings: {
    200: inBody(readVerdict),
    // Repeating the request is not charged again.
    202: ({ headers }) => ({ kind: 'working', afterMs: retryAfterMs(headers) ?? 5000 }),
    // The mail server's response was unexpected: "We advise you to retry later."
    222: { kind: 'greylisted' },
    403: ({ headers }) => ({
      kind: 'retry',
      why: 'rate_limit',
      afterMs: retryAfterMs(headers),
    }),
    429: { kind: 'fatal', why: 'credits' },
    // The address's owner asked not to be processed.
    451: judgment('risky', null),
  },
} as const satisfies VerifierKind;

function readVerdict(body: Field): VerifierStep {
  const data = body.at('data').object();
  const status = data.at('status').requiredText();
  if (status === 'valid' && data.at('accept_all').flag()) {
    return judgment('catch_all', null);
  }
  if (status === 'invalid' && data.at('mx_records').value === false) {
    return judgment('invalid', 'no_mx');
  }
  const meaning = MEANINGS.get(status);
  if (meaning) return meaning;
  if (data.at('block').flag()) return judgment('unknown', 'blocked');
  return INCONCLUSIVE;
}

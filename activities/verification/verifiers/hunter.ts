import { type HttpAnswer, jsonApi, retryAfterMs, stepOfBody, stepOfStatus } from '../../http/client.ts';
import { at, type Field, flagOf, objectAt, requiredText } from '../../http/fields.ts';
import { HUNTER } from '../../vendors/hunter.ts';
import {
  answer,
  INCONCLUSIVE,
  type Verifier,
  type VerifierFacts,
  type VerifierOptions,
  type VerifierStep,
} from './verifier.ts';

/** It has limits and a breaker of its own beside the finder's; key and URL are the same. */
export const HUNTER_VERIFIER = {
  id: 'hunter-verifier',
  document: 'https://hunter.io/api-documentation/v2#email-verifier',
  url: HUNTER.url,
  rates: [
    { calls: 10, perMs: 1000 },
    { calls: 300, perMs: 60_000 },
  ],
  // "The request will run for 20 seconds."
  callMs: 30_000,
  // Of the credits that the finder takes 1 of; what could not be verified costs nothing (help.hunter.io, "How do credits work").
  cost: 0.5,
} as const satisfies VerifierFacts;

/**
 * Hunter's Email Verifier, version 2. Of free mail (`webmail`) it asks no server, so it cannot tell. The address is in the
 * URL, as the vendor has it: what is thrown or returned here never holds the URL.
 */
export function createHunterVerifier({ baseUrl, apiKey }: VerifierOptions): Verifier {
  const api = jsonApi(baseUrl, { 'X-API-KEY': apiKey }, HUNTER_VERIFIER.callMs);
  return {
    ...HUNTER_VERIFIER,
    check: (email, signal) => api.get(`/email-verifier?${new URLSearchParams({ email })}`, signal, stepOf),
  };
}

function stepOf(found: HttpAnswer): VerifierStep {
  const afterMs = retryAfterMs(found.headers);
  switch (found.status) {
    case 200:
      return stepOfBody(found, judge);
    case 202:
      // The same question again counts as one.
      return { kind: 'working', afterMs: afterMs ?? 5000 };
    case 222:
      // The mail server's answer was unexpected: "We advise you to retry later."
      return { kind: 'greylisted' };
    case 403:
      return { kind: 'retry', why: 'rate_limit', afterMs };
    case 429:
      return { kind: 'fatal', why: 'credits' };
    case 451:
      // The address's owner has asked that nobody make use of it.
      return answer('risky', null);
    default:
      return stepOfStatus(found);
  }
}

const MEANINGS: ReadonlyMap<string, VerifierStep> = new Map([
  ['valid', answer('valid', 'mailbox_ok')],
  ['invalid', answer('invalid', 'mailbox_missing')],
  ['accept_all', answer('catch_all', null)],
  ['disposable', answer('risky', 'disposable')],
]);

function judge(body: Field): VerifierStep {
  const data = objectAt(body, 'data');
  const status = requiredText(at(data, 'status'));
  if (status === 'valid' && flagOf(at(data, 'accept_all'))) return answer('catch_all', null);
  if (status === 'invalid' && at(data, 'mx_records').value === false) return answer('invalid', 'no_mx');
  return MEANINGS.get(status) ?? (flagOf(at(data, 'block')) ? answer('unknown', 'blocked') : INCONCLUSIVE);
}

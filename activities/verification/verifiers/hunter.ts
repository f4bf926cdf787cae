import { type HttpAnswer, jsonApi, retryAfterMs, stepOfBody, stepOfStatus } from '../../http/client.ts';
import { at, type Field, flagOf, isAbsent, objectAt, requiredText } from '../../http/fields.ts';
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

/** After a 202: the same question again counts as one. */
const REPEAT_MS = 5000;

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
      return { kind: 'working', afterMs: afterMs ?? REPEAT_MS };
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

function judge(body: Field): VerifierStep {
  const data = objectAt(body, 'data');
  const mx = at(data, 'mx_records');
  switch (requiredText(at(data, 'status'))) {
    case 'valid':
      return flagOf(at(data, 'accept_all')) ? answer('catch_all', null) : answer('valid', 'mailbox_ok');
    case 'invalid':
      return answer('invalid', isAbsent(mx) || flagOf(mx) ? 'mailbox_missing' : 'no_mx');
    case 'accept_all':
      return answer('catch_all', null);
    case 'disposable':
      return answer('risky', 'disposable');
    default:
      return flagOf(at(data, 'block')) ? answer('unknown', 'blocked') : INCONCLUSIVE;
  }
}

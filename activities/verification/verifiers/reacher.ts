import { inBody, stepOfStatus } from '../../http/client.ts';
import type { Field } from '../../http/fields.ts';
import { answer, INCONCLUSIVE, type VerifierKind, type VerifierStep } from './verifier.ts';

/**
 * Reacher (docs.reacher.email; reacherhq/check-if-email-exists, its OpenAPI's `CheckEmailOutput`),
 * on a server of one's own or the hosted one. It is only ever talked to over HTTP: its license is
 * the AGPL.
 */
export const REACHER = {
  id: 'reacher',
  // Such as http://localhost:8080, or https://api.reacher.email for the hosted one.
  url: null,
  rates: [{ calls: 5, perMs: 1000 }],
  // It talks to slow mail servers, twice if one greylists it; its own rules allow it 45 s a step.
  callMs: 90_000,
  cost: 1,
  // A server of one's own reads the first, the hosted one the second.
  headersOf: (apiKey): Record<string, string> =>
    apiKey === '' ? {} : { 'x-reacher-secret': apiKey, authorization: apiKey },
  questionAbout: (email) => ({ path: '/v1/check_email', json: { to_email: email } }),
  meanings: {
    200: inBody(stepOfOutput),
    // A server of one's own answers a wrong secret with 400 and names the header.
    400: (found) =>
      /x-reacher-secret/i.test(found.text ?? '')
        ? { kind: 'fatal', why: 'auth' }
        : stepOfStatus(found),
  },
} as const satisfies VerifierKind;

function stepOfOutput(body: Field): VerifierStep {
  const smtp = () => body.at('smtp').object();
  switch (body.at('is_reachable').requiredText()) {
    case 'safe':
      return answer('valid', 'mailbox_ok');
    case 'risky':
      return stepOfRisky(body.at('misc'), smtp());
    case 'invalid':
      return stepOfInvalid(body.at('mx').object(), smtp());
    case 'unknown':
      return stepOfUnknown(smtp());
    default:
      return INCONCLUSIVE;
  }
}

/** First what no second source could mend. */
function stepOfRisky(misc: Field, smtp: Field): VerifierStep {
  if (misc.at('is_disposable').flag()) return answer('risky', 'disposable');
  if (misc.at('is_role_account').flag()) return answer('risky', 'role');
  if (smtp.at('has_full_inbox').flag()) return answer('risky', 'mailbox_full');
  return smtp.at('is_catch_all').flag() ? answer('catch_all', null) : answer('risky', null);
}

/**
 * That it could not talk to mail servers which do exist says nothing about the mailbox, whatever it
 * makes of it.
 */
function stepOfInvalid(mx: Field, smtp: Field): VerifierStep {
  const accepts = mx.at('accepts_mail');
  if (!accepts.isAbsent && !accepts.flag()) return answer('invalid', 'no_mx');
  if (smtp.at('is_disabled').flag()) return answer('invalid', 'mailbox_disabled');
  return smtp.at('can_connect_smtp').flag() ? answer('invalid', 'mailbox_missing') : INCONCLUSIVE;
}

/** Greylisting by name, by RFC 6647's code, or by any temporary reply that asks to come back. */
const GREYLISTED =
  /gr[ae]y[- ]?list|postgrey|\b4[.]7[.]1\b|(?:^transient:|\b45[01]\b).*\b(?:later|again)\b/i;

/**
 * `error.message` is the mail server's own line, mostly without the code before it; `description`
 * is Reacher's.
 */
function stepOfUnknown(smtp: Field): VerifierStep {
  const error = smtp.at('error');
  if (error.isAbsent) return INCONCLUSIVE;
  // A timeout has a duration there, and no text.
  const { value } = error.at('message');
  const message = typeof value === 'string' ? value : '';
  // A server that refuses Reacher's own address says 4.7.1 as well.
  if (['ipblacklisted', 'needsrdns'].includes(smtp.at('description').word())) {
    return answer('unknown', 'blocked');
  }
  if (GREYLISTED.test(message)) return { kind: 'greylisted' };
  return /time(?:d )?-?\s?out/i.test(`${error.at('type').word()} ${message}`)
    ? answer('unknown', 'timeout')
    : INCONCLUSIVE;
}

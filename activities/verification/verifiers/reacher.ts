import { inBody, stepOfStatus } from '../../http/client.ts';
import type { Field } from '../../http/fields.ts';
import {
  INCONCLUSIVE,
  judgment,
  type VerifierKind,
  type VerifierStep,
} from './verifier.ts';

/**
 * Reacher (docs.reacher.email; reacherhq/check-if-email-exists 0.11.7, its OpenAPI's
 * `CheckEmailOutput`, read in November 2026), self-hosted or hosted by the vendor. It is used only
 * over HTTP, because its license is the AGPL. The rate is ours.
 */
export const REACHER = {
  id: 'reacher',
  // Set by the operator: http://localhost:8080, or https://api.reacher.email for the hosted
  // service.
  url: null,
  rates: [{ calls: 5, perMs: 1000 }],
  // Reacher waits for slow mail servers, and contacts them twice if they greylist it. Its own limit
  // is 45 s per step.
  callMs: 90_000,
  cost: 1,
  // A self-hosted server reads the first header, and the hosted service reads the second.
  headersOf(apiKey): Record<string, string> {
    if (apiKey === '') return {};
    return { 'x-reacher-secret': apiKey, authorization: apiKey };
  },
  requestFor: (email) => ({ path: '/v1/check_email', json: { to_email: email } }),
  meanings: {
    200: inBody(stepOfOutput),
    // A self-hosted server responds to a wrong secret with 400 and names the header.
    400(found) {
      const isAboutSecret = found.text !== null && /x-reacher-secret/i.test(found.text);
      if (isAboutSecret) return { kind: 'fatal', why: 'auth' };
      return stepOfStatus(found);
    },
  },
} as const satisfies VerifierKind;

function stepOfOutput(body: Field): VerifierStep {
  const smtp = () => body.at('smtp').object();
  switch (body.at('is_reachable').requiredText()) {
    case 'safe':
      return judgment('valid', 'mailbox_ok');
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

/**
 * Returns the reason for a risky address. A second source can outweigh only the reason that the
 * domain is a catch-all, so the other reasons are tested first.
 */
function stepOfRisky(misc: Field, smtp: Field): VerifierStep {
  if (misc.at('is_disposable').flag()) {
    return judgment('risky', 'disposable');
  }
  if (misc.at('is_role_account').flag()) {
    return judgment('risky', 'role');
  }
  if (smtp.at('has_full_inbox').flag()) {
    return judgment('risky', 'mailbox_full');
  }
  if (smtp.at('is_catch_all').flag()) {
    return judgment('catch_all', null);
  }
  return judgment('risky', null);
}

/**
 * Returns the reason for an invalid address. If Reacher could not connect to an existing mail
 * server, its `invalid` says nothing about the mailbox.
 */
function stepOfInvalid(mx: Field, smtp: Field): VerifierStep {
  const accepts = mx.at('accepts_mail');
  if (!accepts.isAbsent && !accepts.flag()) {
    return judgment('invalid', 'no_mx');
  }
  if (smtp.at('is_disabled').flag()) {
    return judgment('invalid', 'mailbox_disabled');
  }
  if (smtp.at('can_connect_smtp').flag()) {
    return judgment('invalid', 'mailbox_missing');
  }
  return INCONCLUSIVE;
}

/**
 * Matches a mail server's reply that mentions greylisting, has the code from RFC 6647, or is a
 * temporary error that asks to retry.
 */
const GREYLISTED =
  /gr[ae]y[- ]?list|postgrey|\b4[.]7[.]1\b|(?:^transient:|\b45[01]\b).*\b(?:later|again)\b/i;

/**
 * Reads Reacher's `error`. Its `message` is the line that the mail server sent, usually without the
 * status code in front. Its `description` comes from Reacher.
 */
function stepOfUnknown(smtp: Field): VerifierStep {
  const error = smtp.at('error');
  if (error.isAbsent) return INCONCLUSIVE;
  // For a timeout, `message` is a duration and not a text.
  const { value } = error.at('message');
  const message = typeof value === 'string' ? value : '';
  // A mail server that rejects Reacher's own IP address also says 4.7.1.
  if (['ipblacklisted', 'needsrdns'].includes(smtp.at('description').word())) {
    return judgment('unknown', 'blocked');
  }
  if (GREYLISTED.test(message)) return { kind: 'greylisted' };
  const isTimeout = /time(?:d )?-?\s?out/i.test(`${error.at('type').word()} ${message}`);
  if (isTimeout) return judgment('unknown', 'timeout');
  return INCONCLUSIVE;
}

import { NOBODY_KNOWN, ownerOf } from '../../../activities/verification/local-part.ts';
import { CLOSED_DOMAIN, DIRECT_DOMAIN, FREE_MAIL_DOMAINS, PRACTICE_DOMAINS, personOf } from './people.ts';
import { type Answer, ok, type Question, type Route, type Source, textOf } from './wire.ts';

/** What Reacher says of a mailbox, ZeroBounce (status and sub-status), NeverBounce (result and flags), Hunter. */
const MAILBOXES = {
  ok: ['safe', ['valid', ''], ['valid'], 'valid'],
  missing: ['invalid', ['invalid', 'mailbox_not_found'], ['invalid'], 'invalid'],
  catchall: ['risky', ['catch-all', ''], ['catchall', 'accepts_all'], 'accept_all'],
  // Those who ask are to come back, and then it is `ok`; NeverBounce waits for it.
  greylisted: ['unknown', ['unknown', 'greylisted'], ['valid'], 'unknown'],
  full: ['risky', ['invalid', 'mailbox_quota_exceeded'], ['invalid'], 'invalid'],
  role: ['risky', ['do_not_mail', 'role_based'], ['valid', 'role_account'], 'valid'],
  unknown: ['unknown', ['unknown', 'exception_occurred'], ['unknown'], 'unknown'],
} as const;

export type Mailbox = keyof typeof MAILBOXES;

const MAGIC_MAILBOXES: ReadonlyMap<string, Mailbox> = new Map([
  [personOf('2000000135').workEmail, 'catchall'],
  [personOf('2000000143').workEmail, 'greylisted'],
]);

/**
 * What there is at an address: `full.jones@…` is full at any domain of a practice, and so on.
 * @param email in any case; of a domain that is not of this world nothing is known
 */
export function mailboxOf(email: string): Mailbox {
  const address = email.toLowerCase();
  const [local = '', domain = ''] = address.split('@');
  if (domain === CLOSED_DOMAIN || domain === DIRECT_DOMAIN) return 'missing';
  if (!PRACTICE_DOMAINS.includes(domain) && !FREE_MAIL_DOMAINS.includes(domain)) return 'unknown';
  if (ownerOf({ local, domain }, NOBODY_KNOWN) === 'shared') return 'role';
  const named = (Object.keys(MAILBOXES) as Mailbox[]).find((mailbox) => local.startsWith(`${mailbox}.`));
  return MAGIC_MAILBOXES.get(address) ?? named ?? 'ok';
}

/** Reacher's wire format, version 1, as a server of one's own gives it. */
export const reacher: Source = {
  base: '/reacher',
  deny: ({ headers }, secret) =>
    headers['x-reacher-secret'] === secret
      ? null
      : { status: 400, body: { error: 'Missing or invalid x-reacher-secret header.' } },
  routes: { 'POST /v1/check_email': checkOf(({ body }) => textOf(body.to_email), reacherOutput) },
};

/** ZeroBounce's wire format, version 2, as its documents give it: a wrong key comes with 200. */
export const zerobounce: Source = {
  base: '/zerobounce',
  deny: ({ query }, apiKey) =>
    query.get('api_key') === apiKey
      ? null
      : ok({ error: 'Invalid API Key or your account ran out of credits' }),
  routes: {
    'GET /v2/validate': checkOf(emailOf, (address, mailbox) => {
      const [status, subStatus] = MAILBOXES[mailbox][1];
      return ok({ address, status, sub_status: subStatus, free_email: false, did_you_mean: null });
    }),
  },
};

/** NeverBounce's wire format, version 4.2, as its documents give it: errors come with 200 and another `status`. */
export const neverbounce: Source = {
  base: '/neverbounce',
  deny: ({ query }, apiKey) =>
    query.get('key') === apiKey ? null : ok({ status: 'auth_failure', message: 'Invalid API key' }),
  routes: {
    'GET /v4.2/single/check': checkOf(emailOf, (_email, mailbox) => {
      const [result, ...flags] = MAILBOXES[mailbox][2];
      return ok({ status: 'success', result, flags: ['has_dns', 'has_dns_mx', ...flags] });
    }),
  },
};

/** Hunter's Email Verifier: it asks no server of free mail, and advises to retry what met an unexpected answer (222). */
export const hunterVerifier = checkOf(emailOf, (email, mailbox) => {
  const isFree = FREE_MAIL_DOMAINS.some((domain) => email.endsWith(`@${domain}`));
  const status = isFree ? 'webmail' : MAILBOXES[mailbox][3];
  const data = { status, email, webmail: isFree, mx_records: true, accept_all: mailbox === 'catchall' };
  return mailbox === 'greylisted' ? { status: 222, body: {} } : ok({ data });
});

function emailOf({ query }: Question): string | null {
  return query.get('email');
}

/** The one route of a verifier. A mail server that greylists takes the second attempt. */
function checkOf(
  emailIn: (question: Question) => string | null,
  resultOf: (email: string, mailbox: Mailbox) => Answer,
): Route {
  return (question, memory) => {
    const email = emailIn(question) ?? '';
    const mailbox = mailboxOf(email);
    const now = mailbox === 'greylisted' ? memory.inTurn<Mailbox>(email, [mailbox], 'ok') : mailbox;
    return [email, resultOf(email, now)];
  };
}

/** The server's own rule decides what is `risky`, what `invalid` and what `safe`. */
function reacherOutput(email: string, mailbox: Mailbox) {
  const [username, domain] = email.split('@');
  return ok({
    input: email,
    is_reachable: MAILBOXES[mailbox][0],
    misc: { is_disposable: false, is_role_account: mailbox === 'role', is_b2c: false },
    mx: { accepts_mail: true, records: [`mx.${domain}.`] },
    smtp: reacherSmtp(mailbox),
    syntax: { address: email, domain, is_valid_syntax: true, username },
  });
}

function reacherSmtp(mailbox: Mailbox) {
  if (mailbox === 'unknown') return { error: { type: 'IOError', message: 'io: incomplete' } };
  if (mailbox === 'greylisted') {
    const message = 'transient: 4.7.1 Greylisting in action, please come back later';
    return { error: { type: 'AsyncSmtpError', message } };
  }
  return {
    can_connect_smtp: true,
    has_full_inbox: mailbox === 'full',
    is_catch_all: mailbox === 'catchall',
    is_deliverable: mailbox !== 'missing' && mailbox !== 'full',
    is_disabled: false,
  };
}

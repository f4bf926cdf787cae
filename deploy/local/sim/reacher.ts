import { NOBODY_KNOWN, ownerOf } from '../../../activities/verification/local-part.ts';
import { CLOSED_DOMAIN, DIRECT_DOMAIN, FREE_MAIL_DOMAINS, PRACTICE_DOMAINS, personOf } from './people.ts';
import { ok, type Source, textOf } from './wire.ts';

/** What Reacher says of a mailbox. */
const MAILBOXES = {
  ok: 'safe',
  missing: 'invalid',
  catchall: 'risky',
  // Who asks is to come back, and then it is `ok`.
  greylisted: 'unknown',
  full: 'risky',
  role: 'risky',
  unknown: 'unknown',
} as const;

type Mailbox = keyof typeof MAILBOXES;

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
  routes: {
    'POST /v1/check_email': ({ body }, memory) => {
      const email = textOf(body.to_email) ?? '';
      const mailbox = mailboxOf(email);
      // A mail server that greylists takes the second attempt.
      const now = mailbox === 'greylisted' ? memory.inTurn<Mailbox>(email, [mailbox], 'ok') : mailbox;
      return [email, outputOf(email, now)];
    },
  },
};

/** The server's own rule decides what is `risky`, what `invalid` and what `safe`. */
function outputOf(email: string, mailbox: Mailbox) {
  const [username, domain] = email.split('@');
  return ok({
    input: email,
    is_reachable: MAILBOXES[mailbox],
    misc: { is_disposable: false, is_role_account: mailbox === 'role', is_b2c: false },
    mx: { accepts_mail: true, records: [`mx.${domain}.`] },
    smtp: smtpOf(mailbox),
    syntax: { address: email, domain, is_valid_syntax: true, username },
  });
}

function smtpOf(mailbox: Mailbox) {
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

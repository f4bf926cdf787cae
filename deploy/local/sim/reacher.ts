import { NOBODY_KNOWN, ownerOf } from '../../../activities/verification/local-part.ts';
import {
  CLOSED_DOMAIN,
  DIRECT_DOMAIN,
  FREE_MAIL_DOMAINS,
  PRACTICE_DOMAINS,
  personOf,
} from './people.ts';
import { ok, type Source, textOf } from './wire.ts';

/** A mail server's statements about an existing mailbox. */
const THERE = {
  can_connect_smtp: true,
  has_full_inbox: false,
  is_catch_all: false,
  is_deliverable: true,
  is_disabled: false,
};
const COME_BACK = 'transient: 4.7.1 Greylisting in action, please come back later';

/**
 * Reacher's result for a mailbox, and the mail server's statements. Reacher's own rule decides
 * between `risky`, `invalid` and `safe`.
 */
const MAILBOXES = {
  ok: ['safe', THERE],
  missing: ['invalid', { ...THERE, is_deliverable: false }],
  catchall: ['risky', { ...THERE, is_catch_all: true }],
  // The next attempt is `ok`.
  greylisted: ['unknown', { error: { type: 'AsyncSmtpError', message: COME_BACK } }],
  full: ['risky', { ...THERE, has_full_inbox: true, is_deliverable: false }],
  role: ['risky', THERE],
  unknown: ['unknown', { error: { type: 'IOError', message: 'io: incomplete' } }],
} as const;

type Mailbox = keyof typeof MAILBOXES;

const MAGIC_MAILBOXES: ReadonlyMap<string, Mailbox> = new Map([
  [personOf('2000000135').workEmail, 'catchall'],
  [personOf('2000000143').workEmail, 'greylisted'],
]);

/**
 * Returns the kind of mailbox at an address, named by its beginning: `full.jones@…` is full, and so
 * on.
 * @param email in any case; `unknown` if its domain is not in the simulated world
 */
export function mailboxOf(email: string): Mailbox {
  const address = email.toLowerCase();
  const [local = '', domain = ''] = address.split('@');
  if (domain === CLOSED_DOMAIN || domain === DIRECT_DOMAIN) return 'missing';
  if (!PRACTICE_DOMAINS.includes(domain) && !FREE_MAIL_DOMAINS.includes(domain)) return 'unknown';
  if (ownerOf({ local, domain }, NOBODY_KNOWN) === 'shared') return 'role';
  const named = (Object.keys(MAILBOXES) as Mailbox[]).find((mailbox) =>
    local.startsWith(`${mailbox}.`),
  );
  return MAGIC_MAILBOXES.get(address) ?? named ?? 'ok';
}

/** Reacher's wire format, version 1, as on a self-hosted server. */
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
      // A mail server with greylisting accepts the second attempt.
      const now =
        mailbox === 'greylisted' ? memory.inTurn<Mailbox>(email, [mailbox], 'ok') : mailbox;
      const [isReachable, smtp] = MAILBOXES[now];
      const misc = { is_disposable: false, is_role_account: now === 'role' };
      return [email, ok({ is_reachable: isReachable, misc, mx: { accepts_mail: true }, smtp })];
    },
  },
};

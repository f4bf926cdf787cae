import { createTransport } from 'nodemailer';
import type { Notice } from '../db/uploads/parts.ts';
import { LOOPBACK } from './http/client.ts';
import TEXTS from './mail-texts.json' with { type: 'json' };

// Sends emails to the people who use the console. An email contains no result, and no text that a
// visitor typed. Otherwise our server could be used to send texts to strangers.

export interface MailSettings {
  /** `smtp://user:password@host:587`, or `smtps://` for TLS from the start. */
  readonly smtpUrl: string;
  /** The address of the sender. */
  readonly from: string;
  /** The URL at which customers reach the console, without a path. */
  readonly publicUrl: string;
}

/** Sends an email. It rejects with the code of the failure, without the address. */
export type SendNotice = (notice: Notice) => Promise<void>;

/** The email was not sent. The message has codes only, because Temporal stores it. */
export class MailFailure extends Error {
  override readonly name = 'MailFailure';
  /** True if the server rejected the address for good, so that a retry is useless. */
  readonly isPermanent: boolean;

  constructor(error: unknown) {
    const { code = 'unknown', responseCode = 0, command = '' } = Object(error);
    super(`SMTP failed: ${code} ${responseCode}`);
    // For the sender, or without a password, the same codes are faults of our settings.
    this.isPermanent = command === 'RCPT TO' && responseCode >= 500;
  }
}

/** Shorter than the time limit of the activity, so that no retry overtakes a slow server. */
const SEND_MS = 50_000;

/** Creates the function that sends emails by SMTP. Each email has its own connection. */
export function createMail({ smtpUrl, from, publicUrl }: MailSettings): SendNotice {
  const url = new URL(smtpUrl);
  const secure = url.protocol === 'smtps:';
  const user = decodeURIComponent(url.username);
  const pass = decodeURIComponent(url.password);
  const transport = createTransport({
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: Number(url.port || (secure ? 465 : 587)),
    secure,
    // A password and addresses are never sent in the clear, except on this machine.
    requireTLS: !secure && !LOOPBACK.test(url.hostname),
    auth: user === '' ? undefined : { user, pass },
    disableFileAccess: true,
    disableUrlAccess: true,
  });
  return async (notice) => {
    const { uploadId, to, expiresAt } = notice;
    const run = new Date(expiresAt).getTime();
    const outcome = notice.stopReason ? 'has stopped' : 'is done';
    try {
      await transport.sendMail({
        from,
        to: { name: '', address: to },
        subject: `NPI email enrichment: your upload ${outcome}`,
        text: textOf(notice, `${publicUrl}/console/uploads/${uploadId}`),
        // Mail programs show an email once that was sent twice with the same id.
        messageId: `<${uploadId}.${run}@${new URL(publicUrl).hostname}>`,
        headers: { 'auto-submitted': 'auto-generated' },
        signal: AbortSignal.timeout(SEND_MS),
      });
    } catch (error) {
      throw new MailFailure(error);
    }
  };
}

function textOf({ stopReason, total, final }: Notice, url: string): string {
  const done = `${final} of ${total} NPIs are done.`;
  const parts = [`${done} ${TEXTS[stopReason ?? 'done']}`, url, TEXTS.end];
  return `${parts.join('\n\n')}\n`;
}

import { X509Certificate } from 'node:crypto';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { generate } from 'selfsigned';

export interface Certificate {
  /** PEM. */
  readonly cert: string;
  /** PEM. */
  readonly key: string;
  /** The file that holds `cert`: whoever connects has to trust it. */
  readonly certFile: string;
}

const DAY_MS = 86_400_000;

/**
 * A self-made certificate for `localhost`, 127.0.0.1 and ::1, kept as `cert.pem` and `key.pem` in a folder, so that
 * who trusts it need not be told again at each start. It is made anew when missing, unreadable or about to expire.
 */
export async function ensureCertificate(dir: string): Promise<Certificate> {
  const certFile = join(dir, 'cert.pem');
  const keyFile = join(dir, 'key.pem');
  const kept = await Promise.all([readFile(certFile, 'utf8'), readFile(keyFile, 'utf8')]).catch(() => null);
  if (kept !== null && isUsable(kept[0])) return { cert: kept[0], key: kept[1], certFile };

  const made = await generate([{ name: 'commonName', value: 'localhost' }], {
    keyType: 'ec',
    algorithm: 'sha256',
    notAfterDate: new Date(Date.now() + 365 * DAY_MS),
    extensions: [
      { name: 'basicConstraints', cA: true, critical: true },
      { name: 'keyUsage', digitalSignature: true, keyCertSign: true, critical: true },
      { name: 'extKeyUsage', serverAuth: true },
      {
        name: 'subjectAltName',
        altNames: [
          { type: 2, value: 'localhost' },
          { type: 7, ip: '127.0.0.1' },
          { type: 7, ip: '::1' },
        ],
      },
    ],
  });
  await mkdir(dir, { recursive: true });
  await writeFile(keyFile, made.private, { mode: 0o600 });
  await writeFile(certFile, made.cert);
  return { cert: made.cert, key: made.private, certFile };
}

function isUsable(cert: string): boolean {
  try {
    return Date.parse(new X509Certificate(cert).validTo) > Date.now() + DAY_MS;
  } catch {
    return false;
  }
}

import { renameSync, writeFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { type ClientPackage, readReleased } from '../../api/docs/packages.ts';

/**
 * Writes a built package. If its version is released with the same files, it gets the bytes of the
 * release, because another version of npm may compress the same files to other bytes. So a
 * customer's lockfile stays valid.
 */
export function writePackage({ name, file }: ClientPackage, built: Buffer): void {
  const released = readReleased(name);
  const isSame = released !== null && unpacked(released).equals(unpacked(built));
  const path = new URL(`../../${file}`, import.meta.url);
  // Renames a complete file, because the API or another build may use the package now.
  const unfinished = new URL(`${path}.${process.pid}`);
  writeFileSync(unfinished, isSame ? released : built);
  renameSync(unfinished, path);
}

/** Returns a package without its compression. Wheels have none. */
function unpacked(content: Buffer): Buffer {
  const isGzip = content[0] === 0x1f && content[1] === 0x8b;
  return isGzip ? gunzipSync(content) : content;
}
